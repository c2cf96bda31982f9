-- TPC-H 2.4.4 Order Priority Checking
-- parameters: DATE
-- answer: trimmed exact
select o_orderpriority, count(*) as order_count
from orders
where o_orderdate >= cast($1 as date)
  and o_orderdate < cast($1 as date) + interval '3' month
  and exists (
    select * from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate
  )
group by o_orderpriority
order by o_orderpriority
