//! TPC-H's eight tables: their rows in a fixed order, written in whatever form a `RowSink` gives them.
//!
//! The rows are those of the TPC's dbgen (through the crate tpchgen); equal scale, equal rows, always in key order.

pub mod binary;
pub mod command;
pub mod load;
pub mod tbl;

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use tpchgen::dates::TPCHDate;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};

use crate::failure::Failure;

/// Largest scale factor of the specification.
const MAX_SCALE: f64 = 100_000.0;
const MAX_PARTS: i32 = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Table {
    Lineitem,
    Orders,
    Partsupp,
    Customer,
    Part,
    Supplier,
    Nation,
    Region,
}

impl Table {
    /// By the time they take to load, longest first.
    pub const LONGEST_FIRST: [Self; 8] = [
        Self::Lineitem,
        Self::Orders,
        Self::Partsupp,
        Self::Customer,
        Self::Part,
        Self::Supplier,
        Self::Nation,
        Self::Region,
    ];

    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::LONGEST_FIRST.into_iter().find(|table| table.name() == name)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lineitem => "lineitem",
            Self::Orders => "orders",
            Self::Partsupp => "partsupp",
            Self::Customer => "customer",
            Self::Part => "part",
            Self::Supplier => "supplier",
            Self::Nation => "nation",
            Self::Region => "region",
        }
    }

    /// In the order in which the rows have them.
    #[must_use]
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Lineitem => &[
                "l_orderkey",
                "l_partkey",
                "l_suppkey",
                "l_linenumber",
                "l_quantity",
                "l_extendedprice",
                "l_discount",
                "l_tax",
                "l_returnflag",
                "l_linestatus",
                "l_shipdate",
                "l_commitdate",
                "l_receiptdate",
                "l_shipinstruct",
                "l_shipmode",
                "l_comment",
            ],
            Self::Orders => &[
                "o_orderkey",
                "o_custkey",
                "o_orderstatus",
                "o_totalprice",
                "o_orderdate",
                "o_orderpriority",
                "o_clerk",
                "o_shippriority",
                "o_comment",
            ],
            Self::Partsupp => &["ps_partkey", "ps_suppkey", "ps_availqty", "ps_supplycost", "ps_comment"],
            Self::Customer => &[
                "c_custkey",
                "c_name",
                "c_address",
                "c_nationkey",
                "c_phone",
                "c_acctbal",
                "c_mktsegment",
                "c_comment",
            ],
            Self::Part => &[
                "p_partkey",
                "p_name",
                "p_mfgr",
                "p_brand",
                "p_type",
                "p_size",
                "p_container",
                "p_retailprice",
                "p_comment",
            ],
            Self::Supplier => &["s_suppkey", "s_name", "s_address", "s_nationkey", "s_phone", "s_acctbal", "s_comment"],
            Self::Nation => &["n_nationkey", "n_name", "n_regionkey", "n_comment"],
            Self::Region => &["r_regionkey", "r_name", "r_comment"],
        }
    }

    /// Exact, but for lineitem: there four lines an order, which is the mean.
    #[must_use]
    pub fn expected_rows(self, scale: f64) -> u64 {
        let rows = match self {
            Self::Lineitem => 4 * OrderGenerator::calculate_row_count(scale, 1, 1),
            Self::Orders => OrderGenerator::calculate_row_count(scale, 1, 1),
            Self::Partsupp => 4 * PartGenerator::calculate_row_count(scale, 1, 1),
            Self::Customer => CustomerGenerator::calculate_row_count(scale, 1, 1),
            Self::Part => PartGenerator::calculate_row_count(scale, 1, 1),
            Self::Supplier => SupplierGenerator::calculate_row_count(scale, 1, 1),
            Self::Nation => 25,
            Self::Region => 5,
        };
        u64::try_from(rows).unwrap_or(0)
    }
}

/// Takes rows column by column: `columns` values, then `end_row`.
pub trait RowSink {
    fn begin_row(&mut self, columns: u16);
    fn integer(&mut self, value: i64);
    /// A number with two digits after the point, in hundredths.
    fn decimal(&mut self, hundredths: i64);
    fn date(&mut self, date: TPCHDate);
    fn text(&mut self, text: &str);
    /// A text that lies in the generator's pool of comments, far from everything else in memory.
    fn comment(&mut self, text: &'static str);
    fn shown(&mut self, value: &impl Display);
    /// May pass on what has been collected; a failure ends the generation.
    fn end_row(&mut self) -> Result<(), Failure>;
}

/// Refuses what no generator can make.
pub fn check_size(scale: f64, part: i32, parts: i32) -> Result<(), Failure> {
    if !(scale > 0.0 && scale <= MAX_SCALE) {
        return Err(Failure::bad_request(format!("scale {scale}: must be above 0 and at most {MAX_SCALE}")));
    }
    if !(1..=MAX_PARTS).contains(&parts) || !(1..=parts).contains(&part) {
        return Err(Failure::bad_request(format!("part {part} of {parts}: at most {MAX_PARTS} parts, counted from 1")));
    }
    Ok(())
}

/// Writes the rows of one part of a table, in key order; returns how many they were. The parts, one after the other,
/// are the table.
pub fn generate(table: Table, scale: f64, part: i32, parts: i32, sink: &mut impl RowSink) -> Result<u64, Failure> {
    check_size(scale, part, parts)?;
    // The generators make nation and region whole in each part.
    if matches!(table, Table::Nation | Table::Region) && part > 1 {
        return Ok(0);
    }
    let mut rows = 0;
    let columns = u16::try_from(table.columns().len()).unwrap_or(0);
    macro_rules! each_row {
        ($generator:ident, |$row:ident| $write:block) => {
            for $row in $generator::new(scale, part, parts).iter() {
                sink.begin_row(columns);
                $write
                sink.end_row()?;
                rows += 1;
            }
        };
    }
    match table {
        Table::Lineitem => each_row!(LineItemGenerator, |row| {
            sink.integer(row.l_orderkey);
            sink.integer(row.l_partkey);
            sink.integer(row.l_suppkey);
            sink.integer(i64::from(row.l_linenumber));
            sink.integer(row.l_quantity);
            sink.decimal(row.l_extendedprice.into_inner());
            sink.decimal(row.l_discount.into_inner());
            sink.decimal(row.l_tax.into_inner());
            sink.text(row.l_returnflag);
            sink.text(row.l_linestatus);
            sink.date(row.l_shipdate);
            sink.date(row.l_commitdate);
            sink.date(row.l_receiptdate);
            sink.text(row.l_shipinstruct);
            sink.text(row.l_shipmode);
            sink.comment(row.l_comment);
        }),
        Table::Orders => each_row!(OrderGenerator, |row| {
            sink.integer(row.o_orderkey);
            sink.integer(row.o_custkey);
            sink.text(row.o_orderstatus.as_str());
            sink.decimal(row.o_totalprice.into_inner());
            sink.date(row.o_orderdate);
            sink.text(row.o_orderpriority);
            sink.shown(&row.o_clerk);
            sink.integer(i64::from(row.o_shippriority));
            sink.comment(row.o_comment);
        }),
        Table::Partsupp => each_row!(PartSuppGenerator, |row| {
            sink.integer(row.ps_partkey);
            sink.integer(row.ps_suppkey);
            sink.integer(i64::from(row.ps_availqty));
            sink.decimal(row.ps_supplycost.into_inner());
            sink.comment(row.ps_comment);
        }),
        Table::Customer => each_row!(CustomerGenerator, |row| {
            sink.integer(row.c_custkey);
            sink.shown(&row.c_name);
            sink.shown(&row.c_address);
            sink.integer(row.c_nationkey);
            sink.shown(&row.c_phone);
            sink.decimal(row.c_acctbal.into_inner());
            sink.text(row.c_mktsegment);
            sink.comment(row.c_comment);
        }),
        Table::Part => each_row!(PartGenerator, |row| {
            sink.integer(row.p_partkey);
            sink.shown(&row.p_name);
            sink.shown(&row.p_mfgr);
            sink.shown(&row.p_brand);
            sink.text(row.p_type);
            sink.integer(i64::from(row.p_size));
            sink.text(row.p_container);
            sink.decimal(row.p_retailprice.into_inner());
            sink.comment(row.p_comment);
        }),
        Table::Supplier => each_row!(SupplierGenerator, |row| {
            sink.integer(row.s_suppkey);
            sink.shown(&row.s_name);
            sink.shown(&row.s_address);
            sink.integer(row.s_nationkey);
            sink.shown(&row.s_phone);
            sink.decimal(row.s_acctbal.into_inner());
            sink.text(&row.s_comment);
        }),
        Table::Nation => each_row!(NationGenerator, |row| {
            sink.integer(row.n_nationkey);
            sink.text(row.n_name);
            sink.integer(row.n_regionkey);
            sink.comment(row.n_comment);
        }),
        Table::Region => each_row!(RegionGenerator, |row| {
            sink.integer(row.r_regionkey);
            sink.text(row.r_name);
            sink.comment(row.r_comment);
        }),
    }
    Ok(rows)
}
