//! Inputs of the five transactions (clauses 2.4.1, 2.5.1, 2.6.1, 2.7.1 and 2.8.1), and the deck that they come from (5.2.4.2).

use super::{CUSTOMERS, DISTRICTS, ITEMS, Skew, last_name};
use crate::oltp::workload::Own;
use crate::random::Random;

pub const KINDS: [&str; 5] = ["new_order", "payment", "order_status", "delivery", "stock_level"];

/// Cards of each kind in a deck: the minimum mix of clause 5.2.3 with the rest for New-Order.
const DECK: [usize; 5] = [10, 10, 1, 1, 1];

/// Keying times, and the means of the think times (clauses 5.2.5.2 and 5.2.5.4, table of 5.2.5.7), s.
const KEYING_S: [u64; 5] = [18, 3, 2, 2, 2];
const THINKING_S: [f64; 5] = [12.0, 12.0, 10.0, 5.0, 5.0];

/// A number that no item has (clause 2.4.1.5).
const UNUSED_ITEM: i32 = ITEMS + 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Customer {
    Number(i32),
    LastName(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub item: i32,
    pub supplier: i32,
    pub quantity: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Job {
    NewOrder { warehouse: i32, district: i32, customer: i32, lines: Vec<Line> },
    Payment { warehouse: i32, district: i32, at_warehouse: i32, at_district: i32, customer: Customer, cents: i64 },
    OrderStatus { warehouse: i32, district: i32, customer: Customer },
    Delivery { warehouse: i32, carrier: i32 },
    StockLevel { warehouse: i32, district: i32, threshold: i32 },
}

impl Job {
    #[must_use]
    pub fn kind(&self) -> usize {
        match self {
            Self::NewOrder { .. } => 0,
            Self::Payment { .. } => 1,
            Self::OrderStatus { .. } => 2,
            Self::Delivery { .. } => 3,
            Self::StockLevel { .. } => 4,
        }
    }
}

/// One terminal's inputs: its home warehouse and district are fixed for good (clauses 2.4.1.1 and 2.8.1.1).
#[derive(Debug, Clone)]
pub struct Inputs {
    random: Random,
    skew: Skew,
    own: Own,
    home: i32,
    district: i32,
    deck: Vec<usize>,
}

impl Inputs {
    /// Of terminal `number`, from 0, on a population of seed `population`. Terminals are dealt to their `own` warehouses in turn,
    /// and on each to its districts.
    #[must_use]
    pub fn new(seed: u64, population: u64, number: usize, own: Own) -> Self {
        let number = i32::try_from(number).unwrap_or(i32::MAX);
        Self {
            random: Random::new(&[seed, u64::from_le_bytes(*b"terminal"), u64::from(number.unsigned_abs())]),
            skew: Skew::pair(population).1,
            own,
            home: own.first() + number % own.count(),
            district: number / own.count() % DISTRICTS + 1,
            deck: Vec::new(),
        }
    }

    pub fn draw(&mut self) -> Job {
        let kind = self.card();
        let random = &mut self.random;
        let warehouse = self.home;
        let district = random.between(1, DISTRICTS);
        match kind {
            0 => self.new_order(district),
            1 => self.payment(district),
            2 => {
                let customer = customer(random, &self.skew);
                Job::OrderStatus { warehouse, district, customer }
            }
            3 => Job::Delivery { warehouse, carrier: random.between(1, 10) },
            _ => Job::StockLevel { warehouse, district: self.district, threshold: random.between(10, 20) },
        }
    }

    /// Keying and think times for a job, ns.
    pub fn pauses_ns(&mut self, kind: usize) -> (u64, u64) {
        let mean_ns = THINKING_S[kind] * 1e9;
        // Clause 5.2.5.4: cut off at ten times the mean.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some minutes")]
        let longest_ns = (10.0 * mean_ns) as u64;
        (KEYING_S[kind] * 1_000_000_000, self.random.exponential_ns(mean_ns).min(longest_ns))
    }

    fn card(&mut self) -> usize {
        if self.deck.is_empty() {
            self.deck.extend(DECK.iter().enumerate().flat_map(|(kind, &count)| std::iter::repeat_n(kind, count)));
            self.random.shuffle(&mut self.deck);
        }
        self.deck.pop().unwrap_or(0)
    }

    fn new_order(&mut self, district: i32) -> Job {
        let Self { random, skew, own, home, .. } = self;
        let customer = skew.customer(random);
        let count = random.between(5, 15);
        let fails = random.percent(1);
        let lines = (1..=count).map(|number| {
            let drawn = skew.item(random);
            let item = if fails && number == count { UNUSED_ITEM } else { drawn };
            let supplier = if random.percent(1) { other_than(random, *home, *own) } else { *home };
            Line { item, supplier, quantity: random.between(1, 10) }
        });
        let lines = lines.collect();
        Job::NewOrder { warehouse: *home, district, customer, lines }
    }

    fn payment(&mut self, district: i32) -> Job {
        let Self { random, skew, own, home, .. } = self;
        let warehouse = *home;
        let (at_warehouse, at_district) = if random.percent(85) {
            (warehouse, district)
        } else {
            (other_than(random, warehouse, *own), random.between(1, DISTRICTS))
        };
        let customer = customer(random, skew);
        let cents = i64::from(random.between(100, 500_000));
        Job::Payment { warehouse, district, at_warehouse, at_district, customer, cents }
    }
}

/// 60 % by last name.
fn customer(random: &mut Random, skew: &Skew) -> Customer {
    if random.percent(60) {
        Customer::LastName(last_name(skew.last_name(random)))
    } else {
        Customer::Number(skew.customer(random))
    }
}

/// Any other of one's own warehouses; the same if there is no other.
fn other_than(random: &mut Random, home: i32, own: Own) -> i32 {
    if own.count() == 1 {
        return home;
    }
    let drawn = own.first() + random.between(1, own.count() - 1) - 1;
    if drawn < home { drawn } else { drawn + 1 }
}

const _: () = assert!(CUSTOMERS > 1000, "the first thousand customers of a district have one last name each");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_drawn_as_the_specification_says() {
        let mut inputs = Inputs::new(1, 1, 3, Own(1, 5));
        assert_eq!((inputs.home, inputs.district), (4, 1));
        let jobs: Vec<Job> = (0..23_000).map(|_| inputs.draw()).collect();
        let mut kinds = [0u32; 5];
        let (mut failing, mut lines, mut remote_lines, mut orders) = (0, 0, 0, 0);
        let (mut payments, mut remote, mut by_name) = (0, 0, 0);
        for job in &jobs {
            kinds[job.kind()] += 1;
            match job {
                Job::NewOrder { lines: ordered, warehouse, .. } => {
                    orders += 1;
                    assert!((5..=15).contains(&ordered.len()) && *warehouse == 4);
                    failing += u32::from(ordered.iter().any(|line| line.item == UNUSED_ITEM));
                    lines += ordered.len();
                    remote_lines += ordered.iter().filter(|line| line.supplier != 4).count();
                    assert!(ordered.iter().all(|line| (1..=5).contains(&line.supplier)));
                }
                Job::Payment { at_warehouse, customer, cents, .. } => {
                    payments += 1;
                    remote += u32::from(*at_warehouse != 4);
                    by_name += u32::from(matches!(customer, Customer::LastName(_)));
                    assert!((100..=500_000).contains(cents));
                }
                _ => {}
            }
        }
        // A deck is dealt out before the next begins.
        assert_eq!(kinds, [10_000, 10_000, 1000, 1000, 1000]);
        assert!((60..145).contains(&failing), "{failing} of {orders}");
        assert!((80_000..120_000).contains(&lines) && (800..1250).contains(&remote_lines), "{remote_lines} of {lines}");
        assert!((1350..1650).contains(&remote) && (5800..6200).contains(&by_name), "{remote}, {by_name} of {payments}");
    }

    #[test]
    fn terminals_differ_and_repeat() {
        let jobs = |seed, number| -> Vec<Job> {
            let mut inputs = Inputs::new(seed, 1, number, Own(1, 2));
            (0..10).map(|_| inputs.draw()).collect()
        };
        assert_eq!(jobs(1, 0), jobs(1, 0));
        assert_ne!(jobs(1, 0), jobs(1, 2));
        assert_ne!(jobs(1, 0), jobs(2, 0));
    }

    /// Every warehouse that a job names.
    fn touched(job: &Job) -> Vec<i32> {
        match job {
            Job::NewOrder { warehouse, lines, .. } => {
                lines.iter().map(|line| line.supplier).chain([*warehouse]).collect()
            }
            Job::Payment { warehouse, at_warehouse, .. } => vec![*warehouse, *at_warehouse],
            Job::OrderStatus { warehouse, .. }
            | Job::Delivery { warehouse, .. }
            | Job::StockLevel { warehouse, .. } => {
                vec![*warehouse]
            }
        }
    }

    #[test]
    fn a_tenant_stays_within_its_own_warehouses_and_comes_to_each() {
        for own in [Own(1, 3), Own(4, 6), Own(7, 7)] {
            for number in 0..7 {
                let mut inputs = Inputs::new(1, 1, number, own);
                let jobs: Vec<Job> = (0..2000).map(|_| inputs.draw()).collect();
                let seen: std::collections::BTreeSet<i32> = jobs.iter().flat_map(touched).collect();
                assert_eq!(seen, (own.0..=own.1).collect(), "terminal {number}");
            }
        }
    }

    #[test]
    fn tenants_differ_by_nothing_but_where_their_warehouses_begin() {
        let drawn = |own: Own| -> Vec<Vec<i32>> {
            let mut inputs = Inputs::new(1, 1, 4, own);
            (0..500).map(|_| touched(&inputs.draw()).iter().map(|warehouse| warehouse - own.0).collect()).collect()
        };
        assert_eq!(drawn(Own(1, 3)), drawn(Own(4, 6)));
    }
}
