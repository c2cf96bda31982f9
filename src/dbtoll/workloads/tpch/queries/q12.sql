-- TPC-H 2.4.12 Shipping Modes and Order Priority
-- parameters: SHIPMODE1 SHIPMODE2 DATE
-- answer: trimmed exact exact
select
  l_shipmode,
  sum(case when o_orderpriority = '1-URGENT' or o_orderpriority = '2-HIGH' then 1 else 0 end) as high_line_count,
  sum(case when o_orderpriority <> '1-URGENT' and o_orderpriority <> '2-HIGH' then 1 else 0 end) as low_line_count
from orders, lineitem
where o_orderkey = l_orderkey
  and l_shipmode in (cast($1 as char(10)), cast($2 as char(10)))
  and l_commitdate < l_receiptdate
  and l_shipdate < l_commitdate
  and l_receiptdate >= cast($3 as date)
  and l_receiptdate < cast($3 as date) + interval '1' year
group by l_shipmode
order by l_shipmode
