//! Decimal numbers of any length as databases compute with them: digit groups of base 10 000, each result in memory of its own
//! (as `numeric` of PostgreSQL).

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "groups are below 10 000, and a number has a few of them"
)]

use std::cmp::Ordering;
use std::hint::black_box;

use super::{Made, Repeated, Request};
use crate::random::Random;

const BASE: i32 = 10_000;
/// What one event does in a row, so that the loop around it does not matter.
const ROWS: usize = 1000;

/// A thousand times price x (1 - discount) x (1 + tax), as an invoice does it, and each of the five added to a sum: an event is all of them.
/// Operations are reached through pointers, operands unpacked from a row.
pub fn decimals(_: &Request) -> Made {
    let mut random = Random::new(&[10]);
    let rows: Vec<[Vec<u8>; 3]> = (0..ROWS)
        .map(|_| {
            let price = Decimal::from_hundredths(i64::from(90_000 + random.below(10_000_000)));
            let [discount, tax] = [11, 9].map(|bound| Decimal::from_hundredths(i64::from(random.below(bound))));
            [price.packed(), discount.packed(), tax.packed()]
        })
        .collect();
    let operations: [Operation; 3] = [Decimal::sum, Decimal::difference, Decimal::product];
    let one = Decimal::from_hundredths(100);
    Ok(Box::new(Repeated(move || {
        let [add, subtract, multiply] = black_box(operations);
        let mut sums = [(); 5].map(|()| Decimal::default());
        for row in &rows {
            let [price, discount, tax] = row.each_ref().map(|packed| Decimal::unpacked(packed));
            let discounted = multiply(&price, &subtract(&one, &discount));
            let charged = multiply(&discounted, &add(&one, &tax));
            for (sum, value) in sums.iter_mut().zip([price, discount, tax, discounted, charged]) {
                *sum = add(sum, &value);
            }
        }
        black_box(sums);
        Ok(())
    })))
}

type Operation = fn(&Decimal, &Decimal) -> Decimal;

/// Its value is that of the groups, the first of which stands for `weight` powers of the base.
#[derive(Clone, Debug, Default, PartialEq)]
struct Decimal {
    negative: bool,
    weight: i32,
    groups: Vec<i16>,
}

impl Decimal {
    fn from_hundredths(value: i64) -> Self {
        let mut rest = value * 100;
        let mut groups = [0; 4];
        for group in groups.iter_mut().rev() {
            *group = (rest % i64::from(BASE)) as i16;
            rest /= i64::from(BASE);
        }
        Self { negative: false, weight: 2, groups: groups.to_vec() }.stripped()
    }

    /// As a row has it: sign, weight, groups.
    fn packed(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.negative), self.weight as u8];
        self.groups.iter().for_each(|group| bytes.extend(group.to_le_bytes()));
        bytes
    }

    fn unpacked(bytes: &[u8]) -> Self {
        let groups = bytes[2..].chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect();
        Self { negative: bytes[0] != 0, weight: i32::from(bytes[1] as i8), groups }
    }

    /// Without zeros before and behind.
    fn stripped(mut self) -> Self {
        while self.groups.last() == Some(&0) {
            self.groups.pop();
        }
        let zeros = self.groups.iter().take_while(|group| **group == 0).count();
        self.groups.drain(..zeros);
        self.weight -= zeros as i32;
        if self.groups.is_empty() { Self::default() } else { self }
    }

    /// The group that stands for so many powers of the base.
    fn group(&self, power: i32) -> i32 {
        usize::try_from(self.weight - power)
            .ok()
            .and_then(|place| self.groups.get(place))
            .map_or(0, |group| i32::from(*group))
    }

    fn last_power(&self) -> i32 {
        self.weight + 1 - self.groups.len() as i32
    }

    fn compare_magnitudes(&self, other: &Self) -> Ordering {
        let powers = self.last_power().min(other.last_power())..=self.weight.max(other.weight);
        powers
            .rev()
            .map(|power| self.group(power).cmp(&other.group(power)))
            .find(|found| found.is_ne())
            .unwrap_or(Ordering::Equal)
    }

    /// Of the magnitudes, the second times 1 or -1; the first is the larger one if that is -1.
    fn combined(&self, other: &Self, sign: i32, negative: bool) -> Self {
        let (first, last) = (self.weight.max(other.weight) + 1, self.last_power().min(other.last_power()));
        let mut groups = vec![0_i16; (first - last + 1) as usize];
        let mut carry = 0;
        for (place, power) in (last..=first).enumerate() {
            let mut value = self.group(power) + sign * other.group(power) + carry;
            carry = 0;
            if value >= BASE {
                (value, carry) = (value - BASE, 1);
            } else if value < 0 {
                (value, carry) = (value + BASE, -1);
            }
            let end = groups.len() - 1;
            groups[end - place] = value as i16;
        }
        Self { negative, weight: first, groups }.stripped()
    }

    fn sum(&self, other: &Self) -> Self {
        if self.negative == other.negative {
            return self.combined(other, 1, self.negative);
        }
        match self.compare_magnitudes(other) {
            Ordering::Less => other.combined(self, -1, other.negative),
            Ordering::Equal => Self::default(),
            Ordering::Greater => self.combined(other, -1, self.negative),
        }
    }

    fn difference(&self, other: &Self) -> Self {
        self.sum(&Self { negative: !other.negative, ..other.clone() })
    }

    fn product(&self, other: &Self) -> Self {
        let mut sums = vec![0_i32; self.groups.len() + other.groups.len()];
        for (place, one) in self.groups.iter().enumerate() {
            for (further, two) in other.groups.iter().enumerate() {
                sums[place + further + 1] += i32::from(*one) * i32::from(*two);
            }
        }
        let mut groups = vec![0_i16; sums.len()];
        let mut carry = 0;
        for (group, sum) in groups.iter_mut().zip(sums).rev() {
            let value = sum + carry;
            carry = value / BASE;
            *group = (value % BASE) as i16;
        }
        Self { negative: self.negative != other.negative, weight: self.weight + other.weight + 1, groups }.stripped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In hundredths of hundredths.
    fn value(decimal: &Decimal) -> i128 {
        let groups = (-1..=decimal.weight.max(-1))
            .rev()
            .fold(0, |sum, power| sum * i128::from(BASE) + i128::from(decimal.group(power)));
        if decimal.negative { -groups } else { groups }
    }

    #[test]
    fn they_are_computed_as_integers_are() {
        let mut random = Random::new(&[1]);
        for _ in 0..10_000 {
            let [one, two] = [(); 2].map(|()| i64::from(random.below(1_000_000_000)) >> random.below(30));
            let (left, right) = (Decimal::from_hundredths(one), Decimal::from_hundredths(two));
            assert_eq!(Decimal::unpacked(&left.packed()), left);
            let (one, two) = (i128::from(one) * 100, i128::from(two) * 100);
            assert_eq!(value(&left), one);
            assert_eq!(value(&left.sum(&right)), one + two);
            assert_eq!(value(&left.difference(&right)), one - two);
            assert_eq!(value(&left.difference(&right).sum(&left.product(&right))), one - two + one * two / 10_000);
        }
    }
}
