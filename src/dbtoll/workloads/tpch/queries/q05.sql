-- TPC-H 2.4.5 Local Supplier Volume
-- parameters: REGION DATE
-- answer: trimmed numeric
-- order: n_name is added, so that equal rows have one order.
select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
from customer, orders, lineitem, supplier, nation, region
where c_custkey = o_custkey
  and l_orderkey = o_orderkey
  and l_suppkey = s_suppkey
  and c_nationkey = s_nationkey
  and s_nationkey = n_nationkey
  and n_regionkey = r_regionkey
  and r_name = cast($1 as char(25))
  and o_orderdate >= cast($2 as date)
  and o_orderdate < cast($2 as date) + interval '1' year
group by n_name
order by revenue desc, n_name
