-- TPC-H 2.4.3 Shipping Priority
-- parameters: SEGMENT DATE
-- answer: exact numeric exact exact
-- order: l_orderkey is added, so that equal rows have one order.
select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
from customer, orders, lineitem
where c_mktsegment = cast($1 as char(10))
  and c_custkey = o_custkey
  and l_orderkey = o_orderkey
  and o_orderdate < cast($2 as date)
  and l_shipdate > cast($2 as date)
group by l_orderkey, o_orderdate, o_shippriority
order by revenue desc, o_orderdate, l_orderkey
limit 10
