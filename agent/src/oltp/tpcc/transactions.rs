//! The five transactions, statement by statement (clauses 2.4.2, 2.5.2, 2.6.2, 2.7.4 and 2.8.2), or as one call each.
//!
//! What is queued together depends on nothing that is still to come: pipelined, each group is one round trip; in the plain
//! interaction each statement is one. Both send the same statements in the same order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

use serde::{Serialize, Serializer};

use super::DISTRICTS;
use super::input::{Customer, Inputs, Job, Line};
use crate::oltp::tally::Ending;
use crate::oltp::terminal::{Committing, Stop, Work};
use crate::talk::rows::strange;
use crate::talk::statement::{Kind, Statement, Value};
use crate::talk::{Connection, Interaction};
use crate::wire::Dialect;

use Kind::{Cents, Int, Text};

/// Numbers of the statements.
mod id {
    pub const BEGIN: usize = 0;
    pub const COMMIT: usize = 1;
    pub const WAREHOUSE_TAX: usize = 2;
    pub const DISTRICT_ORDER: usize = 3;
    pub const ADVANCE_DISTRICT: usize = 4;
    pub const CUSTOMER_DISCOUNT: usize = 5;
    pub const INSERT_ORDER: usize = 6;
    pub const INSERT_NEW_ORDER: usize = 7;
    pub const ITEM: usize = 8;
    pub const UPDATE_STOCK: usize = 9;
    pub const INSERT_LINE: usize = 10;
    pub const PAY_WAREHOUSE: usize = 11;
    pub const WAREHOUSE_ADDRESS: usize = 12;
    pub const PAY_DISTRICT: usize = 13;
    pub const DISTRICT_ADDRESS: usize = 14;
    pub const CUSTOMERS_BY_NAME: usize = 15;
    pub const CUSTOMER_DETAILS: usize = 16;
    pub const PAY_GOOD_CUSTOMER: usize = 17;
    pub const PAY_BAD_CUSTOMER: usize = 18;
    pub const CUSTOMER_DATA: usize = 19;
    pub const INSERT_HISTORY: usize = 20;
    pub const CUSTOMER_BALANCE: usize = 21;
    pub const LAST_ORDER: usize = 22;
    pub const ORDER_LINES: usize = 23;
    pub const OLDEST_NEW_ORDER: usize = 24;
    pub const DELETE_NEW_ORDER: usize = 25;
    pub const ORDER_CUSTOMER: usize = 26;
    pub const SET_CARRIER: usize = 27;
    pub const DELIVER_LINES: usize = 28;
    pub const ORDER_AMOUNT: usize = 29;
    pub const CREDIT_CUSTOMER: usize = 30;
    pub const NEXT_ORDER: usize = 31;
    pub const LOW_STOCK: usize = 32;
    /// Of the first district; one for each follows.
    pub const STOCK: usize = 33;
    /// Numbers of the calls, which are another list.
    pub const CALL_NEW_ORDER: usize = 0;
    pub const CALL_PAYMENT: usize = 1;
    pub const CALL_ORDER_STATUS: usize = 2;
    pub const CALL_DELIVERY: usize = 3;
    pub const CALL_STOCK_LEVEL: usize = 4;
}

/// What is prepared on each connection.
#[must_use]
pub fn statements(interaction: Interaction, dialect: Dialect) -> Vec<Statement> {
    if interaction == Interaction::Procedure { calls(dialect) } else { single() }
}

#[expect(clippy::too_many_lines, reason = "a list")]
fn single() -> Vec<Statement> {
    let mut statements = vec![
        Statement::new("begin", &[]),
        Statement::new("commit", &[]),
        Statement::new("select w_tax from warehouse where w_id = $1", &[Int]),
        Statement::new(
            "select d_tax, d_next_o_id from district where d_w_id = $1 and d_id = $2 for update",
            &[Int, Int],
        ),
        Statement::new(
            "update district set d_next_o_id = d_next_o_id + 1 where d_w_id = $1 and d_id = $2",
            &[Int, Int],
        ),
        Statement::new(
            "select c_discount, c_last, c_credit from customer where c_w_id = $1 and c_d_id = $2 and c_id = $3",
            &[Int, Int, Int],
        ),
        Statement::new(
            "insert into orders (o_id, o_d_id, o_w_id, o_c_id, o_entry_d, o_carrier_id, o_ol_cnt, o_all_local) \
             values ($1, $2, $3, $4, current_timestamp, null, $5, $6)",
            &[Int, Int, Int, Int, Int, Int],
        ),
        Statement::new("insert into new_order (no_o_id, no_d_id, no_w_id) values ($1, $2, $3)", &[Int, Int, Int]),
        Statement::new("select i_price, i_name, i_data from item where i_id = $1", &[Int]),
        Statement::new(
            "update stock set s_quantity = $1, s_ytd = s_ytd + $2, s_order_cnt = s_order_cnt + 1, \
             s_remote_cnt = s_remote_cnt + $3 where s_w_id = $4 and s_i_id = $5",
            &[Int, Int, Int, Int, Int],
        ),
        Statement::new(
            "insert into order_line (ol_o_id, ol_d_id, ol_w_id, ol_number, ol_i_id, ol_supply_w_id, ol_delivery_d, \
             ol_quantity, ol_amount, ol_dist_info) values ($1, $2, $3, $4, $5, $6, null, $7, $8, $9)",
            &[Int, Int, Int, Int, Int, Int, Int, Cents, Text],
        ),
        Statement::new("update warehouse set w_ytd = w_ytd + $1 where w_id = $2", &[Cents, Int]),
        Statement::new(
            "select w_name, w_street_1, w_street_2, w_city, w_state, w_zip from warehouse where w_id = $1",
            &[Int],
        ),
        Statement::new("update district set d_ytd = d_ytd + $1 where d_w_id = $2 and d_id = $3", &[Cents, Int, Int]),
        Statement::new(
            "select d_name, d_street_1, d_street_2, d_city, d_state, d_zip from district where d_w_id = $1 and d_id = $2",
            &[Int, Int],
        ),
        Statement::new(
            "select c_id from customer where c_w_id = $1 and c_d_id = $2 and c_last = $3 order by c_first",
            &[Int, Int, Text],
        ),
        Statement::new(
            "select c_first, c_middle, c_last, c_street_1, c_street_2, c_city, c_state, c_zip, c_phone, c_since, c_credit, \
             c_credit_lim, c_discount, c_balance from customer where c_w_id = $1 and c_d_id = $2 and c_id = $3 for update",
            &[Int, Int, Int],
        ),
        Statement::new(
            "update customer set c_balance = c_balance - $1, c_ytd_payment = c_ytd_payment + $2, \
             c_payment_cnt = c_payment_cnt + 1 where c_w_id = $3 and c_d_id = $4 and c_id = $5",
            &[Cents, Cents, Int, Int, Int],
        ),
        Statement::new(
            "update customer set c_balance = c_balance - $1, c_ytd_payment = c_ytd_payment + $2, \
             c_payment_cnt = c_payment_cnt + 1, c_data = left(concat($3, c_data), 500) \
             where c_w_id = $4 and c_d_id = $5 and c_id = $6",
            &[Cents, Cents, Text, Int, Int, Int],
        ),
        Statement::new("select c_data from customer where c_w_id = $1 and c_d_id = $2 and c_id = $3", &[Int, Int, Int]),
        Statement::new(
            "insert into history (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data) \
             values ($1, $2, $3, $4, $5, current_timestamp, $6, $7)",
            &[Int, Int, Int, Int, Int, Cents, Text],
        ),
        Statement::new(
            "select c_balance, c_first, c_middle, c_last from customer where c_w_id = $1 and c_d_id = $2 and c_id = $3",
            &[Int, Int, Int],
        ),
        Statement::new(
            "select o_id, o_entry_d, o_carrier_id from orders where o_w_id = $1 and o_d_id = $2 and o_c_id = $3 \
             order by o_id desc limit 1",
            &[Int, Int, Int],
        ),
        Statement::new(
            "select ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d from order_line \
             where ol_w_id = $1 and ol_d_id = $2 and ol_o_id = $3",
            &[Int, Int, Int],
        ),
        Statement::new(
            "select no_o_id from new_order where no_w_id = $1 and no_d_id = $2 order by no_o_id limit 1",
            &[Int, Int],
        ),
        Statement::new("delete from new_order where no_w_id = $1 and no_d_id = $2 and no_o_id = $3", &[Int, Int, Int]),
        Statement::new("select o_c_id from orders where o_w_id = $1 and o_d_id = $2 and o_id = $3", &[Int, Int, Int]),
        Statement::new(
            "update orders set o_carrier_id = $1 where o_w_id = $2 and o_d_id = $3 and o_id = $4",
            &[Int, Int, Int, Int],
        ),
        Statement::new(
            "update order_line set ol_delivery_d = current_timestamp where ol_w_id = $1 and ol_d_id = $2 and ol_o_id = $3",
            &[Int, Int, Int],
        ),
        Statement::new(
            "select sum(ol_amount) from order_line where ol_w_id = $1 and ol_d_id = $2 and ol_o_id = $3",
            &[Int, Int, Int],
        ),
        Statement::new(
            "update customer set c_balance = c_balance + $1, c_delivery_cnt = c_delivery_cnt + 1 \
             where c_w_id = $2 and c_d_id = $3 and c_id = $4",
            &[Cents, Int, Int, Int],
        ),
        Statement::new("select d_next_o_id from district where d_w_id = $1 and d_id = $2", &[Int, Int]),
        Statement::new(
            "select count(distinct s_i_id) from order_line join stock on s_i_id = ol_i_id and s_w_id = ol_w_id \
             where ol_w_id = $1 and ol_d_id = $2 and ol_o_id >= $3 and ol_o_id < $4 and s_quantity < $5",
            &[Int, Int, Int, Int, Int],
        ),
    ];
    statements.extend((1..=DISTRICTS).map(|district| {
        let sql = format!(
            "select s_quantity, s_dist_{district:02}, s_data from stock where s_w_id = $1 and s_i_id = $2 for update"
        );
        Statement::new(sql, &[Int, Int])
    }));
    statements
}

/// The procedures are made when the data are loaded (workloads/tpcc/procedures-*.sql). Each commits for itself.
fn calls(dialect: Dialect) -> Vec<Statement> {
    let calls: [(&str, &'static [Kind]); 5] = [
        ("tpcc_new_order", &[Int, Int, Int, Text]),
        ("tpcc_payment", &[Int, Int, Int, Int, Int, Text, Cents]),
        ("tpcc_order_status", &[Int, Int, Int, Text]),
        ("tpcc_delivery", &[Int, Int]),
        ("tpcc_stock_level", &[Int, Int, Int]),
    ];
    let verb = match dialect {
        Dialect::Postgres | Dialect::Standard => "select",
        Dialect::Mysql => "call",
    };
    let one = |(name, parameters): (&str, &'static [Kind])| {
        let list: Vec<String> = (1..=parameters.len()).map(|number| format!("${number}")).collect();
        Statement::new(format!("{verb} {name}({})", list.join(", ")), parameters)
    };
    calls.into_iter().map(one).collect()
}

/// What was acknowledged to the terminals of a thread since they began: it has to be in the data afterwards.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Acknowledged {
    /// New orders by warehouse and district.
    #[serde(serialize_with = "with_spaced_keys")]
    pub new_orders: BTreeMap<(i32, i32), u64>,
    /// Payments by the warehouse that received them: their number, and hundredths of the currency.
    pub payments: BTreeMap<i32, (u64, i64)>,
    /// The same of transactions whose connection was lost while they were being committed: they may be there.
    #[serde(serialize_with = "with_spaced_keys")]
    pub unknown_new_orders: BTreeMap<(i32, i32), u64>,
    pub unknown_payments: BTreeMap<i32, (u64, i64)>,
}

/// JSON knows no pairs as keys: `"3 10"`.
fn with_spaced_keys<S: Serializer>(counts: &BTreeMap<(i32, i32), u64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer
        .collect_map(counts.iter().map(|((warehouse, district), count)| (format!("{warehouse} {district}"), count)))
}

/// One terminal of TPC-C.
pub struct Terminal {
    inputs: Inputs,
    interaction: Interaction,
    has_pauses: bool,
    /// Whether the server's answers mean nothing, so that what is not in them is made up.
    is_imitation: bool,
    acknowledged: Rc<RefCell<Acknowledged>>,
}

impl Terminal {
    #[must_use]
    pub fn new(
        inputs: Inputs,
        interaction: Interaction,
        has_pauses: bool,
        is_imitation: bool,
        acknowledged: Rc<RefCell<Acknowledged>>,
    ) -> Self {
        Self { inputs, interaction, has_pauses, is_imitation, acknowledged }
    }
}

impl Work for Terminal {
    type Job = Job;

    fn draw(&mut self) -> Job {
        self.inputs.draw()
    }

    fn kind(job: &Job) -> usize {
        job.kind()
    }

    fn pauses_ns(&mut self, job: &Job) -> (u64, u64) {
        if self.has_pauses { self.inputs.pauses_ns(job.kind()) } else { (0, 0) }
    }

    async fn attempt(&mut self, c: &mut Connection, job: &Job, committing: &mut Committing) -> Result<Ending, Stop> {
        let imitation = self.is_imitation;
        if self.interaction == Interaction::Procedure {
            return call(c, job, committing, imitation).await;
        }
        match job {
            Job::NewOrder { warehouse, district, customer, lines } => {
                new_order(c, committing, imitation, *warehouse, *district, *customer, lines).await
            }
            Job::Payment { .. } => payment(c, committing, imitation, job).await,
            Job::OrderStatus { warehouse, district, customer } => {
                order_status(c, committing, imitation, *warehouse, *district, customer).await
            }
            Job::Delivery { warehouse, carrier } => delivery(c, committing, imitation, *warehouse, *carrier).await,
            Job::StockLevel { warehouse, district, threshold } => {
                stock_level(c, committing, imitation, *warehouse, *district, *threshold).await
            }
        }
    }

    fn acknowledge(&mut self, job: &Job, certain: bool) {
        let mut acknowledged = self.acknowledged.borrow_mut();
        let Acknowledged { new_orders, payments, unknown_new_orders, unknown_payments } = &mut *acknowledged;
        match job {
            Job::NewOrder { warehouse, district, .. } => {
                let counts = if certain { new_orders } else { unknown_new_orders };
                *counts.entry((*warehouse, *district)).or_default() += 1;
            }
            Job::Payment { warehouse, cents, .. } => {
                let sums = if certain { payments } else { unknown_payments };
                let (count, sum) = sums.entry(*warehouse).or_default();
                *count += 1;
                *sum += cents;
            }
            _ => {}
        }
    }
}

/// Ends the transaction; together with what is queued where the server allows it.
async fn commit(c: &mut Connection, committing: &mut Committing, queued: usize) -> Result<Ending, Stop> {
    if c.may_pipeline_commit() {
        committing.0 = true;
        c.queue(id::COMMIT, &[]);
        c.pass(queued + 1).await?;
    } else {
        c.pass(queued).await?;
        committing.0 = true;
        c.ask(id::COMMIT, &[]).await?;
    }
    Ok(Ending::Committed)
}

struct Stock {
    price: i64,
    quantity: i32,
    district_info: String,
}

async fn new_order(
    c: &mut Connection,
    committing: &mut Committing,
    imitation: bool,
    warehouse: i32,
    district: i32,
    customer: i32,
    lines: &[Line],
) -> Result<Ending, Stop> {
    let (w, d) = (Value::Int(warehouse), Value::Int(district));
    c.queue(id::BEGIN, &[]);
    c.queue(id::WAREHOUSE_TAX, &[w]);
    c.queue(id::DISTRICT_ORDER, &[w, d]);
    c.queue(id::ADVANCE_DISTRICT, &[w, d]);
    c.queue(id::CUSTOMER_DISCOUNT, &[w, d, Value::Int(customer)]);
    let stock_statement = id::STOCK + usize::try_from(district - 1).unwrap_or(0);
    for line in lines {
        c.queue(id::ITEM, &[Value::Int(line.item)]);
        c.queue(stock_statement, &[Value::Int(line.supplier), Value::Int(line.item)]);
    }
    c.answer().await?;
    let tax = c.answer().await?.decimal_at(0, 4, imitation)?;
    let (district_tax, order) = {
        let rows = c.answer().await?;
        (rows.decimal_at(0, 4, imitation)?, rows.int_at(1, imitation)?)
    };
    c.answer().await?;
    let discount = c.answer().await?.decimal_at(0, 4, imitation)?;
    let mut stocks = Vec::with_capacity(lines.len());
    for _ in lines {
        let price = {
            let rows = c.answer().await?;
            if rows.count() == 0 && !imitation {
                // An item that does not exist: clause 2.4.2.3, the whole order is rolled back.
                c.roll_back().await?;
                return Ok(Ending::RolledBack);
            }
            rows.decimal_at(0, 2, imitation)?
        };
        let rows = c.answer().await?;
        let district_info = rows.text_at(1, imitation)?;
        stocks.push(Stock { price, quantity: rows.int_at(0, imitation)?, district_info });
    }
    let o = Value::Int(order);
    let all_local = i32::from(lines.iter().all(|line| line.supplier == warehouse));
    let count = i32::try_from(lines.len()).unwrap_or(0);
    c.queue(id::INSERT_ORDER, &[o, d, w, Value::Int(customer), Value::Int(count), Value::Int(all_local)]);
    c.queue(id::INSERT_NEW_ORDER, &[o, d, w]);
    let mut total = 0;
    for (number, (line, stock)) in (1..).zip(lines.iter().zip(&stocks)) {
        // Saturating and wrapping: a server may answer with any number.
        let left = stock.quantity.saturating_sub(line.quantity);
        let quantity = if left >= 10 { left } else { left + 91 };
        let remote = i32::from(line.supplier != warehouse);
        let (supplier, item) = (Value::Int(line.supplier), Value::Int(line.item));
        c.queue(
            id::UPDATE_STOCK,
            &[Value::Int(quantity), Value::Int(line.quantity), Value::Int(remote), supplier, item],
        );
        let amount = stock.price.saturating_mul(i64::from(line.quantity));
        total = amount.saturating_add(total);
        let info = Value::Text(&stock.district_info);
        let values =
            [o, d, w, Value::Int(number), item, supplier, Value::Int(line.quantity), Value::Cents(amount), info];
        c.queue(id::INSERT_LINE, &values);
    }
    // What the terminal would show (clause 2.4.3.4).
    let factors = [10_000_i64.wrapping_sub(discount), tax.wrapping_add(district_tax).wrapping_add(10_000)];
    std::hint::black_box(factors.iter().fold(total, |sum, factor| sum.wrapping_mul(*factor) / 10_000));
    commit(c, committing, 2 + 2 * lines.len()).await
}

async fn payment(c: &mut Connection, committing: &mut Committing, imitation: bool, job: &Job) -> Result<Ending, Stop> {
    let Job::Payment { warehouse, district, at_warehouse, at_district, customer, cents } = job else {
        unreachable!("a payment")
    };
    let (w, d, amount) = (Value::Int(*warehouse), Value::Int(*district), Value::Cents(*cents));
    let (cw, cd) = (Value::Int(*at_warehouse), Value::Int(*at_district));
    c.queue(id::BEGIN, &[]);
    c.queue(id::PAY_WAREHOUSE, &[amount, w]);
    c.queue(id::WAREHOUSE_ADDRESS, &[w]);
    c.queue(id::PAY_DISTRICT, &[amount, w, d]);
    c.queue(id::DISTRICT_ADDRESS, &[w, d]);
    if let Customer::LastName(name) = customer {
        c.queue(id::CUSTOMERS_BY_NAME, &[cw, cd, Value::Text(name)]);
    }
    c.pass(2).await?;
    let warehouse_name = c.answer().await?.text_at(0, imitation)?;
    c.answer().await?;
    let district_name = c.answer().await?.text_at(0, imitation)?;
    let number = match customer {
        Customer::Number(number) => *number,
        Customer::LastName(_) => c.answer().await?.middle_int(imitation)?,
    };
    let n = Value::Int(number);
    let is_bad = c.ask(id::CUSTOMER_DETAILS, &[cw, cd, n]).await?.text_at(10, imitation)? == "BC";
    if is_bad {
        let mut data = String::new();
        let (whole, rest) = (cents / 100, cents % 100);
        // Writing into memory cannot fail.
        let _ = write!(data, "{number} {at_district} {at_warehouse} {district} {warehouse} {whole}.{rest:02} | ");
        c.queue(id::PAY_BAD_CUSTOMER, &[amount, amount, Value::Text(&data), cw, cd, n]);
        c.queue(id::CUSTOMER_DATA, &[cw, cd, n]);
    } else {
        c.queue(id::PAY_GOOD_CUSTOMER, &[amount, amount, cw, cd, n]);
    }
    let about = format!("{warehouse_name}    {district_name}");
    c.queue(id::INSERT_HISTORY, &[n, cd, cw, d, w, amount, Value::Text(&about)]);
    commit(c, committing, if is_bad { 3 } else { 2 }).await
}

async fn order_status(
    c: &mut Connection,
    committing: &mut Committing,
    imitation: bool,
    warehouse: i32,
    district: i32,
    customer: &Customer,
) -> Result<Ending, Stop> {
    let (w, d) = (Value::Int(warehouse), Value::Int(district));
    c.queue(id::BEGIN, &[]);
    let number = match customer {
        Customer::Number(number) => *number,
        Customer::LastName(name) => {
            c.queue(id::CUSTOMERS_BY_NAME, &[w, d, Value::Text(name)]);
            c.answer().await?;
            c.answer().await?.middle_int(imitation)?
        }
    };
    let n = Value::Int(number);
    c.queue(id::CUSTOMER_BALANCE, &[w, d, n]);
    c.queue(id::LAST_ORDER, &[w, d, n]);
    if matches!(customer, Customer::Number(_)) {
        c.answer().await?;
    }
    c.answer().await?.decimal_at(0, 2, imitation)?;
    let order = c.answer().await?.int_at(0, imitation)?;
    c.queue(id::ORDER_LINES, &[w, d, Value::Int(order)]);
    commit(c, committing, 1).await
}

/// All districts in one transaction (clause 2.7.4.2); executed at once rather than deferred, as common drivers do.
async fn delivery(
    c: &mut Connection,
    committing: &mut Committing,
    imitation: bool,
    warehouse: i32,
    carrier: i32,
) -> Result<Ending, Stop> {
    let w = Value::Int(warehouse);
    c.queue(id::BEGIN, &[]);
    for district in 1..=DISTRICTS {
        c.queue(id::OLDEST_NEW_ORDER, &[w, Value::Int(district)]);
    }
    c.answer().await?;
    let mut found = Vec::new();
    for district in 1..=DISTRICTS {
        let rows = c.answer().await?;
        if rows.count() > 0 || imitation {
            found.push((district, rows.int_at(0, imitation)?));
        }
    }
    for &(district, order) in &found {
        let (d, o) = (Value::Int(district), Value::Int(order));
        c.queue(id::DELETE_NEW_ORDER, &[w, d, o]);
        c.queue(id::ORDER_CUSTOMER, &[w, d, o]);
        c.queue(id::SET_CARRIER, &[Value::Int(carrier), w, d, o]);
        c.queue(id::DELIVER_LINES, &[w, d, o]);
        c.queue(id::ORDER_AMOUNT, &[w, d, o]);
    }
    let mut credits = Vec::new();
    for &(district, _) in &found {
        // Another delivery of the same warehouse was faster.
        if c.answer().await?.affected == 0 && !imitation {
            return Err(Stop::Conflict);
        }
        let customer = c.answer().await?.int_at(0, imitation)?;
        c.pass(2).await?;
        credits.push((district, customer, c.answer().await?.decimal_at(0, 2, imitation)?));
    }
    for &(district, customer, amount) in &credits {
        c.queue(id::CREDIT_CUSTOMER, &[Value::Cents(amount), w, Value::Int(district), Value::Int(customer)]);
    }
    commit(c, committing, credits.len()).await
}

async fn stock_level(
    c: &mut Connection,
    committing: &mut Committing,
    imitation: bool,
    warehouse: i32,
    district: i32,
    threshold: i32,
) -> Result<Ending, Stop> {
    /// Clause 2.8.2.2: the last twenty orders of the district.
    const LAST: i32 = 20;
    let (w, d) = (Value::Int(warehouse), Value::Int(district));
    c.queue(id::BEGIN, &[]);
    c.queue(id::NEXT_ORDER, &[w, d]);
    c.answer().await?;
    let next = c.answer().await?.int_at(0, imitation)?;
    c.queue(id::LOW_STOCK, &[w, d, Value::Int(next.saturating_sub(LAST)), Value::Int(next), Value::Int(threshold)]);
    commit(c, committing, 1).await
}

/// One call for the whole transaction; the procedure says with its first value how it ended: 1 committed, 0 rolled back as
/// its input asks for, -1 another was faster.
async fn call(c: &mut Connection, job: &Job, committing: &mut Committing, imitation: bool) -> Result<Ending, Stop> {
    committing.0 = true;
    let int = Value::Int;
    let named = |customer: &Customer| match customer {
        Customer::Number(number) => (*number, String::new()),
        Customer::LastName(name) => (0, name.clone()),
    };
    let rows = match job {
        Job::NewOrder { warehouse, district, customer, lines } => {
            let mut list = String::with_capacity(32 * lines.len());
            let mut digits = itoa::Buffer::new();
            for line in lines {
                list.push(if list.is_empty() { '[' } else { ',' });
                for (before, number) in [('[', line.item), (',', line.supplier), (',', line.quantity)] {
                    list.push(before);
                    list.push_str(digits.format(number));
                }
                list.push(']');
            }
            list.push(']');
            let values = [int(*warehouse), int(*district), int(*customer), Value::Text(&list)];
            c.ask(id::CALL_NEW_ORDER, &values).await?
        }
        Job::Payment { warehouse, district, at_warehouse, at_district, customer, cents } => {
            let (number, name) = named(customer);
            let at = [int(*warehouse), int(*district), int(*at_warehouse), int(*at_district)];
            let values = [at[0], at[1], at[2], at[3], int(number), Value::Text(&name), Value::Cents(*cents)];
            c.ask(id::CALL_PAYMENT, &values).await?
        }
        Job::OrderStatus { warehouse, district, customer } => {
            let (number, name) = named(customer);
            let values = [int(*warehouse), int(*district), int(number), Value::Text(&name)];
            c.ask(id::CALL_ORDER_STATUS, &values).await?
        }
        Job::Delivery { warehouse, carrier } => c.ask(id::CALL_DELIVERY, &[int(*warehouse), int(*carrier)]).await?,
        Job::StockLevel { warehouse, district, threshold } => {
            c.ask(id::CALL_STOCK_LEVEL, &[int(*warehouse), int(*district), int(*threshold)]).await?
        }
    };
    if imitation {
        return Ok(Ending::Committed);
    }
    match rows.int(0, 0)? {
        1 => Ok(Ending::Committed),
        0 => Ok(Ending::RolledBack),
        -1 => Err(Stop::Conflict),
        other => Err(strange(&format!("{other} as the end of a procedure")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::talk::statement::is_well_formed;

    #[test]
    fn every_statement_has_the_parameters_that_its_text_names() {
        for statement in single().iter().chain(&calls(Dialect::Postgres)) {
            assert!(is_well_formed(statement), "{}", statement.sql);
        }
        assert_eq!(single().len(), id::STOCK + 10);
        assert!(single()[id::STOCK + 9].sql.contains("s_dist_10"));
        assert!(single()[id::LOW_STOCK].sql.contains("count(distinct s_i_id)"));
    }
}
