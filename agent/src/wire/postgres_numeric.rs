//! The binary form of PostgreSQL's `numeric` (`numeric_send` in utils/adt/numeric.c).

/// Appends a `numeric` with its length: `units` of 10^-`places`, with so many decimal places to show (at most 4).
///
/// Digits to the base 10000, most significant first, without zeros at either end; the weight is the exponent of the first.
pub fn push_numeric(out: &mut Vec<u8>, units: i64, places: u16) {
    const BASE: u64 = 10_000;
    const BASE_PLACES: u16 = 4;
    const SIGN_NEGATIVE: u16 = 0x4000;
    debug_assert!(places <= BASE_PLACES);
    let one = 10u64.pow(u32::from(places));
    let magnitude = units.unsigned_abs();
    let (mut whole, fraction) = (magnitude / one, magnitude % one * (BASE / one));
    // Least significant first: the fraction, then the whole part. Values of a u64 need at most five digits for it.
    let mut digits = [0u16; 6];
    let mut end = 1;
    #[expect(clippy::cast_possible_truncation, reason = "below the base")]
    {
        digits[0] = fraction as u16;
        while whole > 0 {
            digits[end] = (whole % BASE) as u16;
            whole /= BASE;
            end += 1;
        }
    }
    let start = digits[..end].iter().position(|&digit| digit != 0).unwrap_or(end);
    #[expect(clippy::cast_possible_truncation, reason = "at most six digits")]
    let (count, weight) = ((end - start) as u16, if start == end { 0 } else { i16::try_from(end).unwrap_or(0) - 2 });
    let sign = if units < 0 { SIGN_NEGATIVE } else { 0 };
    out.extend_from_slice(&(8 + 2 * u32::from(count)).to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
    out.extend_from_slice(&weight.to_be_bytes());
    out.extend_from_slice(&sign.to_be_bytes());
    out.extend_from_slice(&places.to_be_bytes());
    for digit in digits[start..end].iter().rev() {
        out.extend_from_slice(&digit.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numeric(units: i64, places: u16) -> Vec<u8> {
        let mut out = Vec::new();
        push_numeric(&mut out, units, places);
        out
    }

    fn words(words: &[i16]) -> Vec<u8> {
        let length = u32::try_from(2 * words.len()).unwrap();
        length.to_be_bytes().into_iter().chain(words.iter().flat_map(|word| word.to_be_bytes())).collect()
    }

    #[test]
    fn numerics_are_what_postgresql_sends_for_them() {
        // Seen with `copy (select 1234.56::numeric(15,2)) to stdout (format binary)` and so on.
        assert_eq!(numeric(123_456, 2), words(&[2, 0, 0, 2, 1234, 5600]));
        assert_eq!(numeric(0, 2), words(&[0, 0, 0, 2]));
        assert_eq!(numeric(1, 2), words(&[1, -1, 0, 2, 100]));
        assert_eq!(numeric(100, 2), words(&[1, 0, 0, 2, 1]));
        assert_eq!(numeric(1_000_000, 2), words(&[1, 1, 0, 2, 1]));
        assert_eq!(numeric(-99_999, 2), words(&[2, 0, 0x4000, 2, 999, 9900]));
        assert_eq!(numeric(5_555_555_501, 2), words(&[3, 1, 0, 2, 5555, 5555, 100]));
        assert_eq!(numeric(17, 0), words(&[1, 0, 0, 0, 17]));
        assert_eq!(numeric(1234, 4), words(&[1, -1, 0, 4, 1234]));
    }

    proptest! {
        #[test]
        fn numerics_mean_what_they_should(units in -9_999_999_999_999_999i64..9_999_999_999_999_999, half in 0u16..3) {
            let places = 2 * half;
            let bytes = numeric(units, places);
            let word = |index: usize| i16::from_be_bytes([bytes[4 + 2 * index], bytes[5 + 2 * index]]);
            let (count, weight) = (usize::try_from(word(0)).unwrap(), i32::from(word(1)));
            prop_assert_eq!(bytes.len(), 4 + 8 + 2 * count);
            let value = (0..count).fold(0i128, |sum, index| {
                let exponent = u32::try_from(weight - i32::try_from(index).unwrap() + 1).unwrap();
                sum + i128::from(word(4 + index)) * 10_000i128.pow(exponent)
            });
            let sign = if word(2) == 0x4000 { -1 } else { 1 };
            prop_assert_eq!(sign * value, i128::from(units) * 10i128.pow(u32::from(4 - places)));
            if count > 0 {
                prop_assert!(word(4) != 0 && word(3 + count) != 0);
            }
        }
    }
}
