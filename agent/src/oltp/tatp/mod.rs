//! TATP: rows, inputs and transactions (Telecommunication Application Transaction Processing Benchmark Description 1.0,
//! IBM Software Group Information Management, 2009).

pub mod population;
pub mod transactions;

/// Clause 2.4 (non-uniform subscriber numbers): A by the number of subscribers.
#[must_use]
pub fn skew(subscribers: i32) -> i32 {
    if subscribers <= 1_000_000 {
        65_535
    } else if subscribers <= 10_000_000 {
        1_048_575
    } else {
        2_097_151
    }
}
