//! The seven transactions (clause 3.4), their mix, and their inputs.
//!
//! A transaction of one statement is that statement alone. What finds nothing, or stumbles over a row that is there already,
//! as a known share of inputs does, is missed, not failed.

use super::population::number_of;
use super::skew;
use crate::oltp::tally::Ending;
use crate::oltp::terminal::{Committing, Stop, Work};
use crate::oltp::workload::Own;
use crate::random::Random;
use crate::talk::Connection;
use crate::talk::statement::{Kind, Statement, Value};
use crate::wire::ServerError;
use crate::wire::blocking::Trouble;

use Kind::{Int, Text};

pub const KINDS: [&str; 7] = [
    "get_subscriber_data",
    "get_new_destination",
    "get_access_data",
    "update_subscriber_data",
    "update_location",
    "insert_call_forwarding",
    "delete_call_forwarding",
];

/// Percent of each kind.
pub const MIX: [u32; 7] = [35, 10, 35, 2, 14, 2, 2];

mod id {
    pub const BEGIN: usize = 0;
    pub const COMMIT: usize = 1;
    pub const GET_SUBSCRIBER: usize = 2;
    pub const GET_DESTINATION: usize = 3;
    pub const GET_ACCESS: usize = 4;
    pub const SET_BIT: usize = 5;
    pub const SET_DATA: usize = 6;
    pub const SET_LOCATION: usize = 7;
    pub const SUBSCRIBER_OF_NUMBER: usize = 8;
    pub const FACILITIES: usize = 9;
    pub const INSERT_FORWARDING: usize = 10;
    pub const DELETE_FORWARDING: usize = 11;
}

/// What is prepared on each connection.
#[must_use]
pub fn statements(has_keys: bool) -> Vec<Statement> {
    let insertion = if has_keys {
        Statement::new(
            "insert into call_forwarding (s_id, sf_type, start_time, end_time, numberx) values ($1, $2, $3, $4, $5)",
            &[Int, Int, Int, Int, Text],
        )
    } else {
        Statement::new(
            "insert into call_forwarding (s_id, sf_type, start_time, end_time, numberx) \
             select sf.s_id, sf.sf_type, cast($1 as integer), cast($2 as integer), cast($3 as varchar(15)) \
             from special_facility sf where sf.s_id = $4 and sf.sf_type = $5 and not exists (select 1 from call_forwarding cf \
             where cf.s_id = sf.s_id and cf.sf_type = sf.sf_type and cf.start_time = $6)",
            &[Int, Int, Text, Int, Int, Int],
        )
    };
    vec![
        Statement::new("begin", &[]),
        Statement::new("commit", &[]),
        Statement::new(
            "select s_id, sub_nbr, bit_1, bit_2, bit_3, bit_4, bit_5, bit_6, bit_7, bit_8, bit_9, bit_10, hex_1, hex_2, hex_3, \
             hex_4, hex_5, hex_6, hex_7, hex_8, hex_9, hex_10, byte2_1, byte2_2, byte2_3, byte2_4, byte2_5, byte2_6, byte2_7, \
             byte2_8, byte2_9, byte2_10, msc_location, vlr_location from subscriber where s_id = $1",
            &[Int],
        ),
        Statement::new(
            "select cf.numberx from special_facility sf join call_forwarding cf on cf.s_id = sf.s_id and cf.sf_type = sf.sf_type \
             where sf.s_id = $1 and sf.sf_type = $2 and sf.is_active = 1 and cf.start_time <= $3 and $4 < cf.end_time",
            &[Int, Int, Int, Int],
        ),
        Statement::new(
            "select data1, data2, data3, data4 from access_info where s_id = $1 and ai_type = $2",
            &[Int, Int],
        ),
        Statement::new("update subscriber set bit_1 = $1 where s_id = $2", &[Int, Int]),
        Statement::new("update special_facility set data_a = $1 where s_id = $2 and sf_type = $3", &[Int, Int, Int]),
        Statement::new("update subscriber set vlr_location = $1 where sub_nbr = $2", &[Int, Text]),
        Statement::new("select s_id from subscriber where sub_nbr = $1", &[Text]),
        Statement::new("select sf_type from special_facility where s_id = $1", &[Int]),
        insertion,
        Statement::new(
            "delete from call_forwarding where s_id = $1 and sf_type = $2 and start_time = $3",
            &[Int, Int, Int],
        ),
    ]
}

/// A drawn transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    kind: usize,
    subscriber: i32,
    /// `ai_type` or `sf_type`.
    sort: i32,
    start: i32,
    end: i32,
    /// A bit, a byte or a location to be set.
    value: i32,
    bit: i32,
    number: String,
}

/// One terminal of TATP.
pub struct Terminal {
    random: Random,
    own: Own,
    has_keys: bool,
    is_imitation: bool,
}

impl Terminal {
    #[must_use]
    pub fn new(seed: u64, number: usize, own: Own, has_keys: bool, is_imitation: bool) -> Self {
        let random = Random::new(&[seed, u64::from_le_bytes(*b"terminal"), number as u64]);
        Self { random, own, has_keys, is_imitation }
    }

    /// Non-uniform over one's own subscribers.
    fn subscriber(&mut self) -> i32 {
        let count = self.own.count();
        let a = self.random.between(0, skew(count));
        self.own.first() + (a | self.random.between(1, count)) % count
    }
}

impl Work for Terminal {
    type Job = Job;

    fn draw(&mut self) -> Job {
        let mut card = self.random.below(100);
        let kind = MIX.iter().position(|&share| {
            let is_it = card < share;
            card = card.saturating_sub(share);
            is_it
        });
        let subscriber = self.subscriber();
        let random = &mut self.random;
        Job {
            kind: kind.unwrap_or(0),
            subscriber,
            sort: random.between(1, 4),
            start: 8 * random.between(0, 2),
            end: random.between(1, 24),
            value: if kind == Some(4) { random.between(1, i32::MAX) } else { random.between(0, 255) },
            bit: random.between(0, 1),
            number: if kind == Some(5) { number_of(random.between(1, i32::MAX)) } else { String::new() },
        }
    }

    fn kind(job: &Job) -> usize {
        job.kind
    }

    fn pauses_ns(&mut self, _job: &Job) -> (u64, u64) {
        (0, 0)
    }

    async fn attempt(&mut self, c: &mut Connection, job: &Job, committing: &mut Committing) -> Result<Ending, Stop> {
        let imitation = self.is_imitation;
        let (s, sort) = (Value::Int(job.subscriber), Value::Int(job.sort));
        let found = |count: u64| if count > 0 || imitation { Ending::Committed } else { Ending::NotFound };
        let number = if job.kind < 4 { String::new() } else { number_of(job.subscriber) };
        let number = Value::Text(&number);
        match job.kind {
            0 => Ok(found(c.ask(id::GET_SUBSCRIBER, &[s]).await?.count() as u64)),
            1 => {
                let values = [s, sort, Value::Int(job.start), Value::Int(job.end)];
                Ok(found(c.ask(id::GET_DESTINATION, &values).await?.count() as u64))
            }
            2 => Ok(found(c.ask(id::GET_ACCESS, &[s, sort]).await?.count() as u64)),
            3 => {
                c.queue(id::BEGIN, &[]);
                c.queue(id::SET_BIT, &[Value::Int(job.bit), s]);
                c.queue(id::SET_DATA, &[Value::Int(job.value), s, sort]);
                // Missed or not is known before the end: what found nothing is rolled back (clause 3.4.4).
                c.pass(2).await?;
                if found(c.answer().await?.affected) == Ending::NotFound {
                    c.roll_back().await?;
                    return Ok(Ending::NotFound);
                }
                end(c, committing).await
            }
            4 => {
                committing.0 = true;
                Ok(found(c.ask(id::SET_LOCATION, &[Value::Int(job.value), number]).await?.affected))
            }
            5 => self.insert_forwarding(c, job, committing, number).await,
            _ => {
                c.queue(id::BEGIN, &[]);
                c.queue(id::SUBSCRIBER_OF_NUMBER, &[number]);
                c.answer().await?;
                let s = Value::Int(c.answer().await?.int_at(0, imitation)?);
                let deleted = c.ask(id::DELETE_FORWARDING, &[s, sort, Value::Int(job.start)]).await?.affected;
                if found(deleted) == Ending::NotFound {
                    c.roll_back().await?;
                    return Ok(Ending::NotFound);
                }
                end(c, committing).await
            }
        }
    }

    fn acknowledge(&mut self, _job: &Job, _certain: bool) {}
}

impl Terminal {
    async fn insert_forwarding(
        &mut self,
        c: &mut Connection,
        job: &Job,
        committing: &mut Committing,
        number: Value<'_>,
    ) -> Result<Ending, Stop> {
        c.queue(id::BEGIN, &[]);
        c.queue(id::SUBSCRIBER_OF_NUMBER, &[number]);
        c.answer().await?;
        let s = Value::Int(c.answer().await?.int_at(0, self.is_imitation)?);
        c.ask(id::FACILITIES, &[s]).await?;
        let (sort, start, end_) = (Value::Int(job.sort), Value::Int(job.start), Value::Int(job.end));
        let to = Value::Text(&job.number);
        let inserted = if self.has_keys {
            c.ask(id::INSERT_FORWARDING, &[s, sort, start, end_, to]).await.map(|rows| rows.affected)
        } else {
            c.ask(id::INSERT_FORWARDING, &[start, end_, to, s, sort, start]).await.map(|rows| rows.affected)
        };
        match inserted {
            Ok(0) if !self.is_imitation => {
                c.roll_back().await?;
                Ok(Ending::NotFound)
            }
            Ok(_) => end(c, committing).await,
            Err(Trouble::Server(error)) if is_in_the_way(&error) => {
                c.roll_back().await?;
                Ok(Ending::NotFound)
            }
            Err(trouble) => Err(trouble.into()),
        }
    }
}

async fn end(c: &mut Connection, committing: &mut Committing) -> Result<Ending, Stop> {
    committing.0 = true;
    c.ask(id::COMMIT, &[]).await?;
    Ok(Ending::Committed)
}

/// The row is there already, or there is no such facility: unique and foreign key violations.
fn is_in_the_way(error: &ServerError) -> bool {
    const DUPLICATE: u16 = 1062;
    const NO_REFERENCED_ROW: u16 = 1452;
    match error.number {
        Some(number) => matches!(number, DUPLICATE | NO_REFERENCED_ROW),
        None => matches!(&*error.sqlstate, "23505" | "23503"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::talk::statement::is_well_formed;

    #[test]
    fn every_statement_has_the_parameters_that_its_text_names() {
        for has_keys in [true, false] {
            assert!(statements(has_keys).iter().all(is_well_formed));
            assert_eq!(statements(has_keys).len(), id::DELETE_FORWARDING + 1);
        }
    }

    #[test]
    fn the_mix_and_the_subscribers_are_as_described() {
        let mut terminal = Terminal::new(1, 0, Own(1, 100_000), true, false);
        let mut kinds = [0u32; 7];
        for _ in 0..100_000 {
            let job = terminal.draw();
            kinds[job.kind] += 1;
            assert!((1..=100_000).contains(&job.subscriber) && [0, 8, 16].contains(&job.start));
        }
        // Pearson's chi-square with six degrees of freedom: 22.5 is exceeded once in a thousand.
        let chi: f64 = kinds
            .iter()
            .zip(MIX)
            .map(|(&seen, share)| (f64::from(seen) - 1000.0 * f64::from(share)).powi(2) / (1000.0 * f64::from(share)))
            .sum();
        assert!(chi < 22.5, "{kinds:?}");
    }

    #[test]
    fn a_tenant_stays_within_its_own_subscribers_and_comes_to_each() {
        for own in [Own(1, 50), Own(51, 100), Own(7, 7)] {
            let mut terminal = Terminal::new(1, 0, own, true, false);
            let seen: std::collections::BTreeSet<i32> = (0..5000).map(|_| terminal.draw().subscriber).collect();
            assert_eq!(seen, (own.0..=own.1).collect());
        }
    }
}
