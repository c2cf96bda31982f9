//! Requests that wait for the one mechanism, and which of them it serves next.

use std::collections::VecDeque;

use super::model::{Access, Mechanism, Plan};

#[derive(Debug)]
pub struct Waiting<T> {
    pub access: Access,
    pub arrived_ns: u64,
    pub of: T,
    /// How many that came later were served before it.
    overtaken: usize,
}

/// In order of arrival. The disk sees the first `depth` of them (tagged command queueing; 1: first come, first served) and takes the
/// one whose first byte it reaches soonest (shortest positioning time first), but the oldest when `depth` others have overtaken it.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    depth: usize,
}

impl<T> Queue<T> {
    #[must_use]
    pub fn new(depth: usize) -> Self {
        Self { waiting: VecDeque::new(), depth: depth.max(1) }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    #[must_use]
    pub fn has_writes(&self) -> bool {
        self.waiting.iter().any(|each| each.access.writes)
    }

    pub fn push(&mut self, access: Access, arrived_ns: u64, of: T) {
        self.waiting.push_back(Waiting { access, arrived_ns, of, overtaken: 0 });
    }

    /// The oldest, whatever it would cost.
    pub fn pop(&mut self) -> Option<Waiting<T>> {
        self.waiting.pop_front()
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// The next one, and what it costs a mechanism that has been free since `free_ns`.
    pub fn next(&mut self, mechanism: &Mechanism, free_ns: u64) -> Option<(Waiting<T>, Plan)> {
        let is_due = self.waiting.front()?.overtaken >= self.depth;
        let seen = if is_due { 1 } else { self.depth };
        let plan = |each: &Waiting<T>| mechanism.plan(&each.access, mechanism.ready_ns(each.arrived_ns).max(free_ns));
        let plans = self.waiting.iter().take(seen).map(plan).enumerate();
        let (place, plan) = plans.min_by_key(|(_, plan)| plan.in_place_ns)?;
        for each in self.waiting.iter_mut().take(place) {
            each.overtaken += 1;
        }
        Some((self.waiting.remove(place)?, plan))
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Fixed, Model, Rotating, Seek};
    use super::*;

    const MS: u64 = 1_000_000;

    fn disk() -> Mechanism {
        let seek = Seek { track_to_track_ns: 1e6, average_ns: 8e6 };
        Mechanism::new(Model::Rotating(Rotating {
            capacity_bytes: 80_000_000_000,
            revolution_ns: 8 * MS,
            overhead_ns: 100_000,
            read_seek: seek,
            write_seek: seek,
            outer_bytes_per_s: 1e8,
            inner_bytes_per_s: 1e8,
            interface_bytes_per_s: 3e8,
            read_ahead_bytes: 0,
        }))
    }

    fn order(depth: usize, offsets: &[u64]) -> (Vec<usize>, u64) {
        let (mut mechanism, mut queue) = (disk(), Queue::new(depth));
        for (number, offset) in offsets.iter().enumerate() {
            queue.push(Access { offset: *offset, bytes: 8192, writes: true }, 0, number);
        }
        let (mut order, mut free_ns) = (Vec::new(), 0);
        while let Some((next, plan)) = queue.next(&mechanism, free_ns) {
            mechanism.done(&next.access, &plan);
            free_ns = plan.end_ns;
            order.push(next.of);
        }
        (order, free_ns)
    }

    #[test]
    fn first_come_first_served_with_a_depth_of_one() {
        let offsets = [40_000_000_000, 0, 79_000_000_000, 8192];
        let (in_turn, in_turn_ns) = order(1, &offsets);
        let (chosen, chosen_ns) = order(32, &offsets);
        assert_eq!(in_turn, [0, 1, 2, 3]);
        assert_eq!(chosen, [1, 3, 0, 2]);
        assert!(chosen_ns < in_turn_ns, "{chosen_ns} {in_turn_ns}");
    }

    #[test]
    fn nobody_is_overtaken_for_ever() {
        // All but the first lie one after the other.
        let offsets: Vec<u64> = [79_000_000_000].into_iter().chain((0..100).map(|n| n * 8192)).collect();
        let (chosen, _) = order(8, &offsets);
        assert_eq!(chosen.iter().position(|number| *number == 0), Some(8));
    }

    #[test]
    fn eight_in_flight_take_eight_service_times() {
        let device = Fixed {
            capacity_bytes: 1 << 30,
            unit_bytes: 8192,
            sequential_read_ns: MS,
            random_read_ns: MS,
            sequential_write_ns: MS,
            random_write_ns: MS,
        };
        let (mut mechanism, mut queue) = (Mechanism::new(Model::Fixed(device)), Queue::new(8));
        (0..8).for_each(|n| queue.push(Access { offset: n * 100_000, bytes: 8192, writes: true }, 5, n));
        let mut ends = Vec::new();
        let mut free_ns = 0;
        while let Some((next, plan)) = queue.next(&mechanism, free_ns) {
            mechanism.done(&next.access, &plan);
            free_ns = plan.end_ns;
            ends.push(free_ns);
        }
        assert_eq!(ends, (1..=8).map(|n| 5 + n * MS).collect::<Vec<_>>());
    }

    #[test]
    fn the_overhead_of_requests_that_wait_is_over_when_it_is_their_turn() {
        let mechanism = disk();
        let mut queue = Queue::new(1);
        let access = Access { offset: 0, bytes: 8192, writes: true };
        queue.push(access, 7 * MS, ());
        let (_, plan) = queue.next(&mechanism, 8 * MS).unwrap();
        assert_eq!(plan.in_place_ns, 8 * MS);
        queue.push(access, 8 * MS, ());
        let (_, plan) = queue.next(&mechanism, 8 * MS).unwrap();
        assert_eq!(plan.in_place_ns, 16 * MS);
    }
}
