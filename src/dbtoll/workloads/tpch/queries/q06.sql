-- TPC-H 2.4.6 Forecasting Revenue Change
-- parameters: DATE DISCOUNT QUANTITY
-- answer: numeric
select sum(l_extendedprice * l_discount) as revenue
from lineitem
where l_shipdate >= cast($1 as date)
  and l_shipdate < cast($1 as date) + interval '1' year
  and l_discount between cast($2 as decimal(15,2)) - 0.01 and cast($2 as decimal(15,2)) + 0.01
  and l_quantity < cast($3 as decimal(15,2))
