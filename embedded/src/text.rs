//! Values in the text form that PostgreSQL would give them, and back.

use std::fmt::Write as _;
use std::io::Write as _;

pub const MICROS_PER_SECOND: i64 = 1_000_000;
pub const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;

/// An integer of any width.
pub fn push_int(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// `unscaled` / 10^`scale`, with all digits of the scale.
pub fn push_decimal(out: &mut Vec<u8>, unscaled: i128, scale: usize) {
    if unscaled < 0 {
        out.push(b'-');
    }
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(unscaled.unsigned_abs()).as_bytes();
    if scale == 0 {
        return out.extend_from_slice(digits);
    }
    let whole = digits.len().saturating_sub(scale);
    if whole == 0 {
        out.push(b'0');
    }
    out.extend_from_slice(&digits[..whole]);
    out.push(b'.');
    out.resize(out.len() + scale.saturating_sub(digits.len()), b'0');
    out.extend_from_slice(&digits[whole..]);
}

/// The shortest text that reads back as the same `float8`.
pub fn push_f64(out: &mut Vec<u8>, value: f64) {
    push_shortest(out, &format!("{value:e}"), value.is_finite(), 15);
}

/// The shortest text that reads back as the same `float4`.
pub fn push_f32(out: &mut Vec<u8>, value: f32) {
    push_shortest(out, &format!("{value:e}"), value.is_finite(), 6);
}

/// `scientific`: as Rust writes it, `-1.25e-7`. PostgreSQL writes an exponent from -5 downwards and from `limit` upwards.
fn push_shortest(out: &mut Vec<u8>, scientific: &str, is_finite: bool, limit: i32) {
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    if !is_finite {
        let text: &[u8] = match mantissa {
            "NaN" => b"NaN",
            "inf" => b"Infinity",
            _ => b"-Infinity",
        };
        return out.extend_from_slice(text);
    }
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    out.extend_from_slice(sign.as_bytes());
    if exponent < -4 || exponent >= limit {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{mantissa}e{sign}{:02}", exponent.abs());
        return;
    }
    let digits: Vec<u8> = mantissa.bytes().filter(|byte| *byte != b'.').collect();
    let zeros = |count: i32| std::iter::repeat_n(b'0', usize::try_from(count).unwrap_or_default());
    if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.extend(zeros(-exponent - 1));
        return out.extend_from_slice(&digits);
    }
    let whole = usize::try_from(exponent).unwrap_or_default() + 1;
    out.extend_from_slice(&digits[..whole.min(digits.len())]);
    if whole < digits.len() {
        out.push(b'.');
        out.extend_from_slice(&digits[whole..]);
    } else {
        out.extend(zeros(i32::try_from(whole - digits.len()).unwrap_or_default()));
    }
}

pub fn push_bool(out: &mut Vec<u8>, value: bool) {
    out.push(if value { b't' } else { b'f' });
}

/// `\x` and two hexadecimal digits for each byte.
pub fn push_blob(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(b"\\x");
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Days since 1970-01-01 as year, month and day of the proleptic Gregorian calendar (H. Hinnant, "chrono-compatible low-level
/// date algorithms", `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of `civil` (ibid., `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// `2026-01-31`, and whether the year is before Christ, which PostgreSQL writes at the end.
fn push_civil(out: &mut Vec<u8>, (year, month, day): (i64, i64, i64)) -> bool {
    let (year, is_bc) = if year > 0 { (year, false) } else { (1 - year, true) };
    let _ = write!(out, "{year:04}-{month:02}-{day:02}");
    is_bc
}

fn push_era(out: &mut Vec<u8>, is_bc: bool) {
    if is_bc {
        out.extend_from_slice(b" BC");
    }
}

/// A date: days since 1970-01-01.
pub fn push_date(out: &mut Vec<u8>, days: i64) {
    let is_bc = push_civil(out, civil(days));
    push_era(out, is_bc);
}

/// A date of its parts.
pub fn push_date_parts(out: &mut Vec<u8>, year: i64, month: i64, day: i64) {
    let is_bc = push_civil(out, (year, month, day));
    push_era(out, is_bc);
}

/// A time of day: microseconds since midnight. Fractions of a second stand there only if there are any.
pub fn push_time(out: &mut Vec<u8>, micros: i64) {
    let (seconds, fraction) = (micros / MICROS_PER_SECOND, micros % MICROS_PER_SECOND);
    let _ = write!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    push_fraction(out, fraction);
}

/// Microseconds below a second, without zeros at the end.
fn push_fraction(out: &mut Vec<u8>, micros: i64) {
    if micros != 0 {
        let _ = write!(out, ".{micros:06}");
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
}

/// A point in time: microseconds since 1970-01-01 00:00, with `zone` behind it.
pub fn push_timestamp(out: &mut Vec<u8>, micros: i64, zone: &str) {
    let is_bc = push_civil(out, civil(micros.div_euclid(MICROS_PER_DAY)));
    out.push(b' ');
    push_time(out, micros.rem_euclid(MICROS_PER_DAY));
    out.extend_from_slice(zone.as_bytes());
    push_era(out, is_bc);
}

/// An interval in PostgreSQL's own style: `1 year 2 mons -3 days 04:05:06.7`.
pub fn push_interval(out: &mut Vec<u8>, months: i32, days: i32, micros: i64) {
    let start = out.len();
    for (count, one, many) in [(months / 12, "year", "years"), (months % 12, "mon", "mons"), (days, "day", "days")] {
        if count != 0 {
            let space = if out.len() > start { " " } else { "" };
            let _ = write!(out, "{space}{count} {}", if count == 1 { one } else { many });
        }
    }
    if micros != 0 || out.len() == start {
        if out.len() > start {
            out.push(b' ');
        }
        if micros < 0 {
            out.push(b'-');
        }
        let magnitude = micros.unsigned_abs();
        let (seconds, fraction) = (magnitude / 1_000_000, magnitude % 1_000_000);
        let _ = write!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
        push_fraction(out, i64::try_from(fraction).unwrap_or_default());
    }
}

/// `550e8400-e29b-41d4-a716-446655440000`.
pub fn push_uuid(out: &mut Vec<u8>, value: u128) {
    let mut hex = String::with_capacity(32);
    let _ = write!(hex, "{value:032x}");
    for (index, part) in [0..8, 8..12, 12..16, 16..20, 20..32].into_iter().enumerate() {
        if index > 0 {
            out.push(b'-');
        }
        out.extend_from_slice(&hex.as_bytes()[part]);
    }
}

/// A decimal number without exponent as (unscaled, scale): `-12.50` is (-1250, 2). At most 38 digits.
#[must_use]
pub fn parse_decimal(text: &str) -> Option<(i128, u8)> {
    let text = text.trim();
    let (is_negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let count = whole.len() + fraction.len();
    if count == 0 || count > 38 || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let unscaled = whole.bytes().chain(fraction.bytes()).fold(0, |sum, byte| sum * 10 + i128::from(byte - b'0'));
    Some((if is_negative { -unscaled } else { unscaled }, u8::try_from(fraction.len()).ok()?))
}

/// PostgreSQL's words for a boolean.
#[must_use]
pub fn parse_bool(text: &str) -> Option<bool> {
    match &*text.trim().to_ascii_lowercase() {
        "t" | "true" | "yes" | "y" | "on" | "1" => Some(true),
        "f" | "false" | "no" | "n" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// `YYYY-MM-DD` as days since 1970-01-01.
#[must_use]
pub fn parse_date(text: &str) -> Option<i32> {
    let mut parts = text.trim().splitn(3, '-').map(|part| {
        let is_number = !part.is_empty() && part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { part.parse::<i64>().ok() } else { None }
    });
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let found = days(year, month, day);
    // What comes back as another date was none: 2026-02-30.
    if civil(found) == (year, month, day) { i32::try_from(found).ok() } else { None }
}

/// `YYYY-MM-DD HH:MM:SS[.ffffff]` as microseconds since 1970-01-01 00:00.
#[must_use]
pub fn parse_timestamp(text: &str) -> Option<i64> {
    let (date, time) = text.trim().split_once([' ', 'T'])?;
    let mut parts = time.splitn(3, ':');
    let (hours, minutes, seconds) = (parts.next()?, parts.next()?, parts.next()?);
    let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let two = |text: &str, limit: i64| {
        let value = if text.len() == 2 { text.parse::<u8>().ok()? } else { return None };
        if i64::from(value) < limit { Some(i64::from(value)) } else { None }
    };
    if fraction.is_empty() || fraction.len() > 6 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let micros: i64 = format!("{fraction:0<6}").parse().ok()?;
    let seconds = two(hours, 24)? * 3600 + two(minutes, 60)? * 60 + two(seconds, 60)?;
    Some(i64::from(parse_date(date)?) * MICROS_PER_DAY + seconds * MICROS_PER_SECOND + micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn decimals_have_all_digits_of_their_scale() {
        for (unscaled, scale, expected) in
            [(0, 2, "0.00"), (-5, 2, "-0.05"), (-1250, 2, "-12.50"), (7, 0, "7"), (1, 38, &format!("0.{:0>38}", 1))]
        {
            assert_eq!(text(|out| push_decimal(out, unscaled, scale)), expected);
        }
        assert_eq!(text(|out| push_decimal(out, i128::MIN, 0)), i128::MIN.to_string());
    }

    #[test]
    fn doubles_are_written_as_postgresql_does() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.5, "1.5"),
            (0.1 + 0.2, "0.30000000000000004"),
            (100.0, "100"),
            (123_456_789_012_345.0, "123456789012345"),
            (1e15, "1e+15"),
            (1.25e300, "1.25e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1.5e-7, "-1.5e-07"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(text(|out| push_f64(out, value)), expected);
        }
        assert_eq!(text(|out| push_f32(out, 1e6)), "1e+06");
        assert_eq!(text(|out| push_f32(out, 0.1)), "0.1");
    }

    #[test]
    fn times_have_fractions_only_where_there_are_any() {
        assert_eq!(text(|out| push_timestamp(out, 0, "")), "1970-01-01 00:00:00");
        assert_eq!(text(|out| push_timestamp(out, -1, "+00")), "1969-12-31 23:59:59.999999+00");
        assert_eq!(text(|out| push_time(out, 3_600_500_000)), "01:00:00.5");
        assert_eq!(text(|out| push_date(out, -719_529)), "0002-12-31 BC");
        assert_eq!(text(|out| push_interval(out, 14, -3, 0)), "1 year 2 mons -3 days");
        assert_eq!(text(|out| push_interval(out, 0, 0, -1_500_000)), "-00:00:01.5");
        assert_eq!(text(|out| push_interval(out, 0, 0, 0)), "00:00:00");
        assert_eq!(text(|out| push_blob(out, &[0, 0xaf])), "\\x00af");
        let uuid = 0x550e_8400_e29b_41d4_a716_4466_5544_0000;
        assert_eq!(text(|out| push_uuid(out, uuid)), "550e8400-e29b-41d4-a716-446655440000");
    }

    #[test]
    fn what_is_no_value_is_refused() {
        for bad in ["", "-", "1e3", "1.2.3", "x", &"9".repeat(39)] {
            assert_eq!(parse_decimal(bad), None, "{bad}");
        }
        for bad in ["2026-02-30", "2026-13-01", "2026-1", "x", "20260-01-01", "-1-01-01"] {
            assert_eq!(parse_date(bad), None, "{bad}");
        }
        for bad in ["2026-01-01", "2026-01-01 24:00:00", "2026-01-01 00:00", "2026-01-01 00:00:00."] {
            assert_eq!(parse_timestamp(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn dates_and_times_read_back(micros in -62_000_000_000_000_000i64..200_000_000_000_000_000) {
            let written = text(|out| push_timestamp(out, micros, ""));
            prop_assert_eq!(parse_timestamp(&written), Some(micros));
        }

        #[test]
        fn doubles_read_back(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            let written = text(|out| push_f64(out, value));
            prop_assert!(value.is_nan() || written.replace("Infinity", "inf").parse() == Ok(value), "{}", written);
        }

        #[test]
        fn decimals_read_back(unscaled in -10i128.pow(37)..10i128.pow(37), scale in 0u8..38) {
            let written = text(|out| push_decimal(out, unscaled, usize::from(scale)));
            prop_assert_eq!(parse_decimal(&written), Some((unscaled, scale)));
        }
    }
}
