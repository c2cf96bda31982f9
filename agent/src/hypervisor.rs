//! Which hypervisor the processor names.

/// Of CPUID leaf 0x40000000, such as `KVMKVMKVM`; empty where there is none, or the processor does not say.
#[must_use]
pub fn signature() -> String {
    let bytes = told();
    bytes.iter().take_while(|byte| byte.is_ascii_graphic() || **byte == b' ').map(|byte| char::from(*byte)).collect()
}

#[cfg(target_arch = "x86_64")]
fn told() -> Vec<u8> {
    use std::arch::x86_64::__cpuid;

    const IS_GUEST: u32 = 1 << 31;
    const LEAF: u32 = 0x4000_0000;
    // SAFETY: every processor of this architecture has the instruction. Leaf 1 says whether the other is one.
    #[allow(unused_unsafe, reason = "older compilers call it unsafe")]
    let (general, leaf) = unsafe { (__cpuid(1), __cpuid(LEAF)) };
    if general.ecx & IS_GUEST == 0 {
        return Vec::new();
    }
    [leaf.ebx, leaf.ecx, leaf.edx].into_iter().flat_map(u32::to_le_bytes).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn told() -> Vec<u8> {
    Vec::new()
}
