//! What a request costs on the disk that is modelled: arithmetic alone, no clock and no wait.
//!
//! A rotating disk is one spiral from its outer edge inwards, at constant linear density: a byte's place is a number of revolutions,
//! whose fraction is the angle at which it lies and whose whole part is its track. So the media rate falls with the radius, and the
//! revolutions between two places are the radial way between them. Heads and surfaces are not told apart: a change of head within a
//! cylinder is in the sustained rates of data sheets.
//!
//! Ruemmler, C. and Wilkes, J., "An introduction to disk drive modeling", IEEE Computer 27(3), 1994: overhead, seek, rotation and
//! transfer, and that a seek takes `a + b*sqrt(d)` over short distances and `c + e*d` over long ones.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "places and times of disks are positive and far below 2^53"
)]

use serde::Deserialize;

/// Whoever comes this late over a place has not missed it: rounding of whole nanoseconds and of angles, far below a sector's time.
const IN_TIME_NS: f64 = 1_000.0;

/// Part of the stroke up to which a seek is short: 383 of 1962 cylinders of the HP 97560 (Ruemmler and Wilkes 1994, Table 2).
const SHORT: f64 = 0.2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub offset: u64,
    pub bytes: u64,
    pub writes: bool,
}

impl Access {
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// As `src/dbtoll/machines/disk_models.py` writes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Model {
    Rotating(Rotating),
    Fixed(Fixed),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rotating {
    pub capacity_bytes: u64,
    pub revolution_ns: u64,
    /// From a request's arrival until the mechanism can begin; requests that wait have it behind them.
    pub overhead_ns: u64,
    pub read_seek: Seek,
    pub write_seek: Seek,
    pub outer_bytes_per_s: f64,
    pub inner_bytes_per_s: f64,
    pub interface_bytes_per_s: f64,
    /// How far the disk reads on after a read, until something else is asked of the head; 0: not at all.
    pub read_ahead_bytes: u64,
}

/// Of a data sheet.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seek {
    pub track_to_track_ns: f64,
    pub average_ns: f64,
}

impl Seek {
    /// Over a part of the stroke, 0 to 1, and at least one track.
    ///
    /// `a + b*sqrt(d)` up to `SHORT`, from there on its tangent: continuous with its slope. `a` is the seek from track to track,
    /// and `b` is such that the mean over two independent places, whose distance has the density `2*(1-d)`, is the average seek.
    #[must_use]
    pub fn over_ns(&self, distance: f64) -> f64 {
        let root = SHORT.sqrt();
        let (c, e) = (root / 2.0, 1.0 / (2.0 * root));
        let of_short = 2.0 * (SHORT.powf(1.5) * 2.0 / 3.0 - SHORT.powf(2.5) * 2.0 / 5.0);
        let of_long = c * (1.0 - SHORT).powi(2) + e * (1.0 / 3.0 - SHORT.powi(2) + SHORT.powi(3) * 2.0 / 3.0);
        let b = (self.average_ns - self.track_to_track_ns) / (of_short + of_long);
        let shape = if distance <= SHORT { distance.sqrt() } else { c + e * distance };
        self.track_to_track_ns + b * shape
    }
}

impl Rotating {
    fn rate(&self, offset: u64) -> f64 {
        let (outer, inner) = (self.outer_bytes_per_s, self.inner_bytes_per_s);
        (outer.powi(2) - (outer.powi(2) - inner.powi(2)) * offset as f64 / self.capacity_bytes as f64).sqrt()
    }

    /// Revolutions from the outer edge to a byte: the integral of `1 / (rate * revolution)`, in a form that loses no digits.
    fn revolutions(&self, offset: u64) -> f64 {
        2.0 * offset as f64 / (self.revolution_s() * (self.outer_bytes_per_s + self.rate(offset)))
    }

    fn revolution_s(&self) -> f64 {
        self.revolution_ns as f64 / 1e9
    }
}

/// A device without a mechanism: a time for each kind of request of `unit_bytes`. What is longer takes so many more sequential ones;
/// what is shorter takes as long as one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixed {
    pub capacity_bytes: u64,
    pub unit_bytes: u64,
    pub sequential_read_ns: u64,
    pub random_read_ns: u64,
    pub sequential_write_ns: u64,
    pub random_write_ns: u64,
}

impl Model {
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        match self {
            Self::Rotating(disk) => disk.capacity_bytes,
            Self::Fixed(device) => device.capacity_bytes,
        }
    }

    /// Why no disk can be so.
    pub fn check(&self) -> Result<(), &'static str> {
        let sound = match self {
            Self::Rotating(disk) => {
                let seeks = [disk.read_seek, disk.write_seek];
                let rates = [disk.outer_bytes_per_s, disk.inner_bytes_per_s, disk.interface_bytes_per_s];
                disk.capacity_bytes > 0
                    && disk.revolution_ns > 0
                    && rates.iter().all(|rate| rate.is_finite() && *rate >= 1.0)
                    && disk.inner_bytes_per_s <= disk.outer_bytes_per_s
                    && seeks.iter().all(|seek| {
                        seek.track_to_track_ns >= 0.0
                            && seek.track_to_track_ns <= seek.average_ns
                            && seek.average_ns.is_finite()
                    })
            }
            Self::Fixed(device) => device.capacity_bytes > 0 && device.unit_bytes > 0,
        };
        if sound { Ok(()) } else { Err("a rate, a time or a size of the model is none") }
    }
}

/// When a request is done.
#[expect(clippy::struct_field_names, reason = "all times end so")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The mechanism is at the first byte: what a disk orders its queue by.
    pub in_place_ns: u64,
    pub end_ns: u64,
    /// When the head passes the last byte: earlier than `end_ns` where it was read ahead.
    passed_ns: u64,
}

/// A disk and where it stands.
#[derive(Debug)]
pub struct Mechanism {
    model: Model,
    /// In revolutions.
    head: f64,
    /// Where the last read ended, and when the head passed that place: it reads on from there.
    ahead: Option<(u64, u64)>,
    /// Ends of the last read and of the last write.
    ends: [Option<u64>; 2],
}

impl Mechanism {
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self { model, head: 0.0, ahead: None, ends: [None; 2] }
    }

    /// When the mechanism can begin with a request that came at `arrived_ns`, if it is free.
    #[must_use]
    pub fn ready_ns(&self, arrived_ns: u64) -> u64 {
        match &self.model {
            Model::Rotating(disk) => arrived_ns + disk.overhead_ns,
            Model::Fixed(_) => arrived_ns,
        }
    }

    /// If it began with it at `at_ns`.
    #[must_use]
    pub fn plan(&self, access: &Access, at_ns: u64) -> Plan {
        match &self.model {
            Model::Fixed(device) => {
                let is_next = self.ends[usize::from(access.writes)] == Some(access.offset);
                let (sequential_ns, random_ns) = if access.writes {
                    (device.sequential_write_ns, device.random_write_ns)
                } else {
                    (device.sequential_read_ns, device.random_read_ns)
                };
                let first_ns = if is_next { sequential_ns } else { random_ns };
                let more = access.bytes.saturating_sub(device.unit_bytes) as f64 / device.unit_bytes as f64;
                let end_ns = at_ns + first_ns + whole(more * sequential_ns as f64);
                Plan { in_place_ns: at_ns, end_ns, passed_ns: end_ns }
            }
            Model::Rotating(disk) => self.read_ahead(disk, access, at_ns).unwrap_or_else(|| {
                let target = disk.revolutions(access.offset);
                let in_place_ns = self.in_place_ns(disk, target, access.writes, at_ns);
                let end_ns = in_place_ns + transfer_ns(disk, access.offset, access.end());
                Plan { in_place_ns, end_ns, passed_ns: end_ns }
            }),
        }
    }

    fn in_place_ns(&self, disk: &Rotating, target: f64, writes: bool, at_ns: u64) -> u64 {
        let tracks = (target - self.head).abs();
        let there_ns = if tracks < 1.0 {
            at_ns
        } else {
            let seek = if writes { disk.write_seek } else { disk.read_seek };
            at_ns + whole(seek.over_ns(tracks / disk.revolutions(disk.capacity_bytes)))
        };
        let revolution_ns = disk.revolution_ns as f64;
        let angle = (there_ns % disk.revolution_ns) as f64 / revolution_ns;
        let wait_ns = (target.fract() - angle).rem_euclid(1.0) * revolution_ns;
        // Upwards, as transfers are downwards: of requests that follow one another without a gap each comes a little early.
        if revolution_ns - wait_ns <= IN_TIME_NS { there_ns } else { there_ns + whole(wait_ns.ceil()) }
    }

    /// A read of what comes next: the head went on reading after the last one, as far as the disk's memory holds it.
    ///
    /// BIAS: one such stream is modelled. Disks keep several, and what has been read once too; the page cache has that already.
    fn read_ahead(&self, disk: &Rotating, access: &Access, at_ns: u64) -> Option<Plan> {
        let (from, passed_ns) = self.ahead?;
        let is_ahead = access.offset >= from && access.offset - from < disk.read_ahead_bytes;
        if access.writes || !is_ahead {
            return None;
        }
        // A head that had filled the memory has waited since. That it then waits for its place is hidden by what is in there.
        let most_ns = whole(disk.read_ahead_bytes as f64 / disk.rate(from) * 1e9);
        let passed_ns = passed_ns.max(at_ns.saturating_sub(most_ns)) + transfer_ns(disk, from, access.end());
        let handed_ns = whole(access.bytes as f64 / disk.interface_bytes_per_s * 1e9);
        let end_ns = passed_ns.max(at_ns + handed_ns);
        Some(Plan { in_place_ns: end_ns - handed_ns, end_ns, passed_ns })
    }

    /// It has done so.
    pub fn done(&mut self, access: &Access, plan: &Plan) {
        self.ends[usize::from(access.writes)] = Some(access.end());
        if let Model::Rotating(disk) = &self.model {
            self.head = disk.revolutions(access.end());
            let reads_on = !access.writes && disk.read_ahead_bytes > 0;
            self.ahead = reads_on.then_some((access.end(), plan.passed_ns));
        }
    }
}

fn transfer_ns(disk: &Rotating, from: u64, to: u64) -> u64 {
    whole((disk.revolutions(to) - disk.revolutions(from)) * disk.revolution_ns as f64)
}

/// Downwards. All that it gets is positive and far below 2^63.
fn whole(ns: f64) -> u64 {
    ns as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const REVOLUTION_NS: u64 = 8_000_000;
    /// A track of 800 000 bytes.
    const RATE: f64 = 1e8;
    const TRACK: u64 = 800_000;

    fn disk() -> Rotating {
        Rotating {
            capacity_bytes: TRACK * 100_000,
            revolution_ns: REVOLUTION_NS,
            overhead_ns: 100_000,
            read_seek: Seek { track_to_track_ns: 1e6, average_ns: 8e6 },
            write_seek: Seek { track_to_track_ns: 1.5e6, average_ns: 9e6 },
            outer_bytes_per_s: RATE,
            inner_bytes_per_s: RATE,
            interface_bytes_per_s: 3e8,
            read_ahead_bytes: 0,
        }
    }

    fn mechanism(disk: Rotating) -> Mechanism {
        Mechanism::new(Model::Rotating(disk))
    }

    fn write(offset: u64, bytes: u64) -> Access {
        Access { offset, bytes, writes: true }
    }

    fn read(offset: u64, bytes: u64) -> Access {
        Access { offset, bytes, writes: false }
    }

    fn served(mechanism: &mut Mechanism, access: Access, at_ns: u64) -> Plan {
        let plan = mechanism.plan(&access, at_ns);
        mechanism.done(&access, &plan);
        plan
    }

    #[test]
    fn the_mean_seek_is_the_data_sheets_and_the_curve_has_no_step() {
        let seek = disk().read_seek;
        let steps = 100_000;
        let mean = (0..steps)
            .map(|step| (f64::from(step) + 0.5) / f64::from(steps))
            .map(|distance| 2.0 * (1.0 - distance) * seek.over_ns(distance) / f64::from(steps))
            .sum::<f64>();
        assert!((mean - 8e6).abs() < 100.0, "{mean}");
        assert!((seek.over_ns(0.0) - 1e6).abs() < 1e-6);
        let slope = |at: f64| (seek.over_ns(at + 1e-7) - seek.over_ns(at - 1e-7)) / 2e-7;
        assert!((seek.over_ns(SHORT + 1e-9) - seek.over_ns(SHORT - 1e-9)).abs() < 1.0);
        assert!((slope(SHORT + 1e-6) / slope(SHORT - 1e-6) - 1.0).abs() < 1e-4);
        // 18 ms from edge to edge: what disks of that kind take.
        assert!((15e6..20e6).contains(&seek.over_ns(1.0)), "{}", seek.over_ns(1.0));
    }

    #[test]
    fn a_request_waits_for_the_angle_of_its_place() {
        let mut disk = mechanism(disk());
        // A quarter of a revolution on the same track, asked for when the disk is at angle 0.
        let plan = served(&mut disk, write(TRACK / 4, 8000), 10 * REVOLUTION_NS);
        assert_eq!(plan.in_place_ns, 10 * REVOLUTION_NS + REVOLUTION_NS / 4);
        assert_eq!(plan.end_ns, plan.in_place_ns + 80_000);
        // The same place again: the rest of the revolution.
        let again = served(&mut disk, write(TRACK / 4, 8000), plan.end_ns);
        assert_eq!(again.in_place_ns, plan.in_place_ns + REVOLUTION_NS);
    }

    #[test]
    fn a_seek_takes_its_distance_and_then_waits_for_the_angle() {
        let disk = disk();
        let whole_ns = disk.write_seek.over_ns(0.5) as u64;
        let plan = mechanism(disk).plan(&write(TRACK * 50_000, 8000), 0);
        let after_ns = plan.in_place_ns - whole_ns;
        assert!(plan.in_place_ns % REVOLUTION_NS <= 1 && after_ns <= REVOLUTION_NS, "{plan:?}");
    }

    #[test]
    fn what_follows_in_time_costs_its_transfer_and_what_comes_late_a_revolution() {
        let mut disk = mechanism(disk());
        let mut end_ns = served(&mut disk, write(12_345_344, 8192), 77).end_ns;
        let begin_ns = end_ns;
        let requests = 100_000;
        for number in 1..=requests {
            end_ns = served(&mut disk, write(12_345_344 + number * 8192, 8192), end_ns).end_ns;
        }
        let expected = requests as f64 * 8192.0 / RATE * 1e9;
        assert!(((end_ns - begin_ns) as f64 - expected).abs() < 2.0, "{} and not {expected}", end_ns - begin_ns);
        // 100 us later the place has gone by.
        let late_ns = end_ns + 100_000;
        let late = served(&mut disk, write(12_345_344 + (requests + 1) * 8192, 8192), late_ns);
        let waited_ns = late.in_place_ns - end_ns;
        assert!(waited_ns.abs_diff(REVOLUTION_NS) < 10, "{waited_ns}");
    }

    #[test]
    fn reading_ahead_goes_at_the_rate_of_the_media_or_of_the_interface() {
        let mut disk = mechanism(Rotating { read_ahead_bytes: 8 << 20, ..disk() });
        let first = served(&mut disk, read(0, 65_536), 0);
        // At once: it waits for the head.
        let second = served(&mut disk, read(65_536, 65_536), first.end_ns + 1000);
        assert_eq!(second.end_ns, first.end_ns + 655_360);
        // A second later all of it lies in the disk's memory.
        let third = served(&mut disk, read(131_072, 65_536), second.end_ns + 1_000_000_000);
        assert_eq!(third.end_ns, second.end_ns + 1_000_000_000 + 218_453);
        // No more than its memory holds is ahead: after that it is the media's rate again.
        let mut at_ns = third.end_ns;
        for number in 3..1003 {
            at_ns = served(&mut disk, read(number * 65_536, 65_536), at_ns).end_ns;
        }
        let media_ns = 1000.0 * 65_536.0 / RATE * 1e9;
        let saved_ns = media_ns - (at_ns - third.end_ns) as f64;
        assert!((0.0..=f64::from(8 << 20) / RATE * 1e9).contains(&saved_ns), "{saved_ns}");
        // A write takes the head away.
        let away = served(&mut disk, write(TRACK * 1000, 8192), at_ns);
        let back = disk.plan(&read(1003 * 65_536, 65_536), away.end_ns);
        assert!(back.in_place_ns >= away.end_ns + 1_000_000, "{back:?}");
    }

    #[test]
    fn inner_tracks_are_slower_and_all_tracks_add_up() {
        let disk = Rotating { inner_bytes_per_s: RATE / 2.0, ..disk() };
        let at = |part: f64| disk.rate((disk.capacity_bytes as f64 * part) as u64) / RATE;
        assert!((at(0.0) - 1.0).abs() < 1e-9 && (at(1.0) - 0.5).abs() < 1e-6);
        // The rate is that of the radius, so it falls with the tracks evenly: halfway inwards it is the mean.
        let all = disk.revolutions(disk.capacity_bytes);
        let halfway = (0..=1000)
            .map(|step| disk.capacity_bytes / 1000 * step)
            .find(|offset| disk.revolutions(*offset) >= all / 2.0)
            .unwrap();
        assert!((disk.rate(halfway) / RATE - 0.75).abs() < 1e-3);
        let mean_rate = disk.capacity_bytes as f64 / (all * disk.revolution_s());
        assert!((mean_rate / RATE - 0.75).abs() < 1e-9);
    }

    #[test]
    fn a_device_without_a_mechanism_takes_the_time_of_its_kind() {
        let device = Fixed {
            capacity_bytes: 1 << 30,
            unit_bytes: 8192,
            sequential_read_ns: 40_000,
            random_read_ns: 70_000,
            sequential_write_ns: 60_000,
            random_write_ns: 80_000,
        };
        let mut device = Mechanism::new(Model::Fixed(device));
        let mut took = |access| served(&mut device, access, 1000).end_ns - 1000;
        assert_eq!([read(0, 8192), read(8192, 8192), read(0, 512)].map(&mut took), [70_000, 40_000, 70_000]);
        assert_eq!([write(512, 8192), write(8704, 16_384)].map(&mut took), [80_000, 120_000]);
    }
}
