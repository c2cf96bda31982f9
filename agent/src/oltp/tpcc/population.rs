//! The initial rows (clause 4.3.3): the same seed makes the same rows, each table of each warehouse from random numbers of
//! its own, so that they can be made in any order.

use super::{CUSTOMERS, DISTRICTS, FIRST_NEW_ORDER, ITEMS, ORDERS, Skew, last_name};
use crate::failure::Failure;
use crate::oltp::bulk::Sink;
use crate::random::Random;

const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const CAPITALS: &[u8; 26] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const FIGURES: &[u8; 10] = b"0123456789";
const ORIGINAL: &[u8] = b"ORIGINAL";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Warehouse,
    District,
    Customer,
    History,
    NewOrder,
    Orders,
    OrderLine,
    Item,
    Stock,
}

impl Table {
    /// By the time that they take to load, longest first.
    pub const LONGEST_FIRST: [Self; 9] = [
        Self::Stock,
        Self::OrderLine,
        Self::Customer,
        Self::Item,
        Self::Orders,
        Self::History,
        Self::NewOrder,
        Self::District,
        Self::Warehouse,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Warehouse => "warehouse",
            Self::District => "district",
            Self::Customer => "customer",
            Self::History => "history",
            Self::NewOrder => "new_order",
            Self::Orders => "orders",
            Self::OrderLine => "order_line",
            Self::Item => "item",
            Self::Stock => "stock",
        }
    }

    /// In the order in which the rows have them; the schema has the same (workloads/tpcc/schema.sql).
    #[must_use]
    pub fn columns(self) -> &'static str {
        match self {
            Self::Warehouse => "w_id, w_name, w_street_1, w_street_2, w_city, w_state, w_zip, w_tax, w_ytd",
            Self::District => {
                "d_id, d_w_id, d_name, d_street_1, d_street_2, d_city, d_state, d_zip, d_tax, d_ytd, d_next_o_id"
            }
            Self::Customer => {
                "c_id, c_d_id, c_w_id, c_first, c_middle, c_last, c_street_1, c_street_2, c_city, c_state, c_zip, c_phone, \
                 c_since, c_credit, c_credit_lim, c_discount, c_balance, c_ytd_payment, c_payment_cnt, c_delivery_cnt, c_data"
            }
            Self::History => "h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data",
            Self::NewOrder => "no_o_id, no_d_id, no_w_id",
            Self::Orders => "o_id, o_d_id, o_w_id, o_c_id, o_entry_d, o_carrier_id, o_ol_cnt, o_all_local",
            Self::OrderLine => {
                "ol_o_id, ol_d_id, ol_w_id, ol_number, ol_i_id, ol_supply_w_id, ol_delivery_d, ol_quantity, ol_amount, \
                 ol_dist_info"
            }
            Self::Item => "i_id, i_im_id, i_name, i_price, i_data",
            Self::Stock => {
                "s_i_id, s_w_id, s_quantity, s_dist_01, s_dist_02, s_dist_03, s_dist_04, s_dist_05, s_dist_06, s_dist_07, \
                 s_dist_08, s_dist_09, s_dist_10, s_ytd, s_order_cnt, s_remote_cnt, s_data"
            }
        }
    }

    /// Whether it has rows for each warehouse; the items are the same for all.
    #[must_use]
    pub fn is_per_warehouse(self) -> bool {
        self != Self::Item
    }

    /// Of one warehouse; of order lines the mean.
    #[must_use]
    pub fn rows(self) -> u64 {
        match self {
            Self::Warehouse => 1,
            Self::District => 10,
            Self::Customer | Self::History | Self::Orders => 30_000,
            Self::NewOrder => 9_000,
            Self::OrderLine => 300_000,
            Self::Item | Self::Stock => 100_000,
        }
    }
}

/// Writes the rows of one table for one warehouse (for the items: all), in key order.
pub fn write(table: Table, warehouse: i32, seed: u64, sink: &mut dyn Sink) -> Result<(), Failure> {
    let number = Table::LONGEST_FIRST.iter().position(|each| *each == table).unwrap_or(0) as u64;
    let random = Random::new(&[seed, u64::from_le_bytes(*b"populate"), number, u64::from(warehouse.unsigned_abs())]);
    let mut rows = Rows { random, text: Vec::with_capacity(512), warehouse, seed };
    match table {
        Table::Warehouse => rows.warehouse(sink),
        Table::District => rows.districts(sink),
        Table::Customer => rows.customers(sink),
        Table::History => rows.history(sink),
        Table::NewOrder => rows.new_orders(sink),
        Table::Orders => rows.orders(sink),
        Table::OrderLine => rows.order_lines(sink),
        Table::Item => rows.items(sink),
        Table::Stock => rows.stock(sink),
    }
}

struct Rows {
    random: Random,
    text: Vec<u8>,
    warehouse: i32,
    seed: u64,
}

impl Rows {
    /// An a-string (clause 4.3.2.2).
    fn letters(&mut self, least: i32, most: i32) -> &[u8] {
        let length = usize::try_from(self.random.between(least, most)).unwrap_or(0);
        self.text.clear();
        self.random.letters(LETTERS, length, &mut self.text);
        &self.text
    }

    /// Name, address and the rest that warehouses, districts and customers have alike.
    fn address(&mut self, sink: &mut dyn Sink) {
        for _ in 0..3 {
            sink.text(self.letters(10, 20)); // street_1, street_2, city
        }
        self.text.clear();
        self.random.letters(CAPITALS, 2, &mut self.text);
        sink.text(&self.text);
        // Clause 4.3.2.7.
        self.text.clear();
        self.random.letters(FIGURES, 4, &mut self.text);
        self.text.extend_from_slice(b"11111");
        sink.text(&self.text);
    }

    /// A tenth of them hold ORIGINAL somewhere (clause 4.3.3.1, items and stock).
    fn data(&mut self) -> &[u8] {
        let is_original = self.random.percent(10);
        self.letters(26, 50);
        if is_original {
            let last = u32::try_from(self.text.len() - ORIGINAL.len()).unwrap_or(0);
            let at = self.random.below(last + 1) as usize;
            self.text[at..at + ORIGINAL.len()].copy_from_slice(ORIGINAL);
        }
        &self.text
    }

    fn items(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        for item in 1..=ITEMS {
            sink.begin_row(5);
            sink.int(item);
            sink.int(self.random.between(1, 10_000));
            sink.text(self.letters(14, 24));
            sink.decimal(i64::from(self.random.between(100, 10_000)), 2);
            sink.text(self.data());
            sink.end_row()?;
        }
        Ok(())
    }

    fn warehouse(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        sink.begin_row(9);
        sink.int(self.warehouse);
        sink.text(self.letters(6, 10));
        self.address(sink);
        sink.decimal(i64::from(self.random.between(0, 2000)), 4);
        sink.decimal(30_000_000, 2);
        sink.end_row()
    }

    fn stock(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        for item in 1..=ITEMS {
            sink.begin_row(17);
            sink.int(item);
            sink.int(self.warehouse);
            sink.int(self.random.between(10, 100));
            for _ in 0..DISTRICTS {
                sink.text(self.letters(24, 24));
            }
            sink.int(0); // ytd
            sink.int(0); // order_cnt
            sink.int(0); // remote_cnt
            sink.text(self.data());
            sink.end_row()?;
        }
        Ok(())
    }

    fn districts(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        for district in 1..=DISTRICTS {
            sink.begin_row(11);
            sink.int(district);
            sink.int(self.warehouse);
            sink.text(self.letters(6, 10));
            self.address(sink);
            sink.decimal(i64::from(self.random.between(0, 2000)), 4);
            sink.decimal(3_000_000, 2);
            sink.int(ORDERS + 1);
            sink.end_row()?;
        }
        Ok(())
    }

    fn customers(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        let (skew, _) = Skew::pair(self.seed);
        for district in 1..=DISTRICTS {
            for customer in 1..=CUSTOMERS {
                sink.begin_row(21);
                sink.int(customer);
                sink.int(district);
                sink.int(self.warehouse);
                sink.text(self.letters(8, 16));
                sink.text(b"OE");
                let name = if customer <= 1000 { customer - 1 } else { skew.last_name(&mut self.random) };
                sink.text(last_name(name).as_bytes());
                self.address(sink);
                self.text.clear();
                self.random.letters(FIGURES, 16, &mut self.text);
                sink.text(&self.text);
                sink.time();
                sink.text(if self.random.percent(10) { b"BC" } else { b"GC" });
                sink.decimal(5_000_000, 2);
                sink.decimal(i64::from(self.random.between(0, 5000)), 4);
                sink.decimal(-1000, 2);
                sink.decimal(1000, 2);
                sink.int(1);
                sink.int(0);
                sink.text(self.letters(300, 500));
                sink.end_row()?;
            }
        }
        Ok(())
    }

    fn history(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        for district in 1..=DISTRICTS {
            for customer in 1..=CUSTOMERS {
                sink.begin_row(8);
                for key in [customer, district, self.warehouse, district, self.warehouse] {
                    sink.int(key);
                }
                sink.time();
                sink.decimal(1000, 2);
                sink.text(self.letters(12, 24));
                sink.end_row()?;
            }
        }
        Ok(())
    }

    /// How many lines each order has; orders and their lines are made apart from each other.
    fn line_counts(&self) -> impl Iterator<Item = (i32, i32, i32)> + use<> {
        let mut random =
            Random::new(&[self.seed, u64::from_le_bytes(*b"ol_count"), u64::from(self.warehouse.unsigned_abs())]);
        (1..=DISTRICTS)
            .flat_map(|district| (1..=ORDERS).map(move |order| (district, order)))
            .map(move |(district, order)| (district, order, random.between(5, 15)))
    }

    fn orders(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        let mut customers: Vec<i32> = Vec::new();
        for (district, order, lines) in self.line_counts() {
            if order == 1 {
                customers = (1..=CUSTOMERS).collect();
                self.random.shuffle(&mut customers);
            }
            sink.begin_row(8);
            sink.int(order);
            sink.int(district);
            sink.int(self.warehouse);
            sink.int(customers[usize::try_from(order - 1).unwrap_or(0)]);
            sink.time();
            if order < FIRST_NEW_ORDER {
                sink.int(self.random.between(1, 10));
            } else {
                sink.null();
            }
            sink.int(lines);
            sink.int(1);
            sink.end_row()?;
        }
        Ok(())
    }

    fn order_lines(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        for (district, order, lines) in self.line_counts() {
            let is_delivered = order < FIRST_NEW_ORDER;
            for number in 1..=lines {
                sink.begin_row(10);
                sink.int(order);
                sink.int(district);
                sink.int(self.warehouse);
                sink.int(number);
                sink.int(self.random.between(1, ITEMS));
                sink.int(self.warehouse);
                if is_delivered {
                    sink.time();
                } else {
                    sink.null();
                }
                sink.int(5);
                let cents = if is_delivered { 0 } else { self.random.between(1, 999_999) };
                sink.decimal(i64::from(cents), 2);
                sink.text(self.letters(24, 24));
                sink.end_row()?;
            }
        }
        Ok(())
    }

    fn new_orders(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        for district in 1..=DISTRICTS {
            for order in FIRST_NEW_ORDER..=ORDERS {
                sink.begin_row(3);
                sink.int(order);
                sink.int(district);
                sink.int(self.warehouse);
                sink.end_row()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oltp::bulk::Bulk;
    use crate::wire::Dialect;

    fn lines(table: Table, warehouse: i32, seed: u64) -> Vec<Vec<String>> {
        let mut content = Vec::new();
        let mut bulk = Bulk::new(Dialect::Mysql, |piece: &[u8], _| {
            content.extend_from_slice(piece);
            Ok(())
        });
        write(table, warehouse, seed, &mut bulk).unwrap();
        bulk.finish().unwrap();
        let text = String::from_utf8(content).unwrap();
        text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
    }

    #[test]
    fn every_row_has_a_value_for_each_column_and_tables_have_their_rows() {
        for table in Table::LONGEST_FIRST {
            let rows = lines(table, 2, 1);
            let columns = table.columns().split(", ").count();
            assert!(rows.iter().all(|row| row.len() == columns), "{}", table.name());
            let wanted = table.rows();
            let slack = if table == Table::OrderLine { 3000 } else { 0 };
            assert!((rows.len() as u64).abs_diff(wanted) <= slack, "{} {}", table.name(), rows.len());
        }
    }

    #[test]
    fn a_seed_makes_the_same_rows_and_another_others() {
        assert_eq!(lines(Table::District, 1, 7), lines(Table::District, 1, 7));
        assert_ne!(lines(Table::District, 1, 7), lines(Table::District, 1, 8));
        assert_ne!(lines(Table::District, 1, 7)[0][2], lines(Table::District, 2, 7)[0][2]);
    }

    #[test]
    fn customers_are_as_specified() {
        let rows = lines(Table::Customer, 1, 1);
        assert_eq!((rows[371][5].as_str(), rows[371][0].as_str()), ("PRICALLYOUGHT", "372"));
        let bad = rows.iter().filter(|row| row[13] == "BC").count();
        assert!((2800..3200).contains(&bad), "{bad}");
        for row in &rows {
            assert!((8..=16).contains(&row[3].len()) && (300..=500).contains(&row[20].len()));
            assert!(row[10].len() == 9 && row[10].ends_with("11111") && row[9].len() == 2 && row[11].len() == 16);
            assert_eq!(row[16], "-10.00");
        }
    }

    #[test]
    fn orders_agree_with_their_lines() {
        let (orders, all) = (lines(Table::Orders, 1, 1), lines(Table::OrderLine, 1, 1));
        let counted: usize = orders.iter().map(|row| row[6].parse::<usize>().unwrap()).sum();
        assert_eq!(counted, all.len());
        let mut customers: Vec<i32> = orders[..3000].iter().map(|row| row[3].parse().unwrap()).collect();
        customers.sort_unstable();
        assert_eq!(customers, (1..=3000).collect::<Vec<_>>());
        assert!(orders.iter().all(|row| (row[5] == "\\N") == (row[0].parse::<i32>().unwrap() >= 2101)));
        assert!(all.iter().all(|row| (row[6] == "\\N") == (row[8] != "0.00")));
    }

    #[test]
    fn a_tenth_of_the_data_is_original() {
        for table in [Table::Item, Table::Stock] {
            let rows = lines(table, 1, 1);
            let found = rows.iter().filter(|row| row.last().unwrap().contains("ORIGINAL")).count();
            assert!((9_600..10_400).contains(&found), "{found}");
        }
    }
}
