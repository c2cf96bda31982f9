//! Shared libraries: opened at run time, their functions resolved by name.

use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

/// Opens `preload` for all to see, then `path`. The last one is returned.
pub fn open<P: AsRef<Path>>(path: &Path, preload: &[P]) -> Result<Library, String> {
    for needed in preload {
        // Stays loaded as long as the process lives: the engine's threads run in it.
        std::mem::forget(load(needed.as_ref(), RTLD_NOW | RTLD_GLOBAL)?);
    }
    load(path, RTLD_NOW | RTLD_LOCAL)
}

fn load(path: &Path, flags: i32) -> Result<Library, String> {
    // Without a slash, dlopen searches the system's folders: that is meant for `libpython3.11.so.1.0`.
    // SAFETY: initialisers of the library run here. It is the one that the caller chose to execute.
    unsafe { Library::open(Some(path), flags) }.map_err(|error| format!("cannot load {}: {error}", path.display()))
}

/// Makes a struct `$table` of C functions that have the prefix `$prefix`, and a constructor that resolves all of them.
#[macro_export]
macro_rules! functions {
    ($table:ident, $prefix:literal, $( $(#[$doc:meta])* fn $name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?; )*) => {
        #[allow(non_snake_case, reason = "the library's own names")]
        struct $table {
            $( $(#[$doc])* $name: unsafe extern "C" fn($($argument),*) $(-> $result)?, )*
        }

        impl $table {
            /// Resolves every function; the library stays loaded as long as the process lives.
            fn load(path: &std::path::Path, preload: &[std::path::PathBuf]) -> Result<&'static Self, String> {
                let library = $crate::library::open(path, preload)?;
                let missing = |name: &str| format!("{} has no function {name}", path.display());
                let table = Self {
                    // SAFETY: the signatures are those of the library's C header.
                    $( $name: *unsafe { library.get(concat!($prefix, stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| missing(concat!($prefix, stringify!($name))))?, )*
                };
                std::mem::forget(library);
                Ok(Box::leak(Box::new(table)))
            }
        }
    };
}
