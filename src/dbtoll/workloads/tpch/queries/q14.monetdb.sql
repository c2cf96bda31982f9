-- TPC-H 2.4.14 Promotion Effect
-- parameters: DATE
-- answer: numeric
-- MonetDB: a quotient of decimals keeps their scale; as double it has the digits of the reference answer.
select
  100.00 * sum(case when p_type like 'PROMO%' then l_extendedprice * (1 - l_discount) else 0 end)
    / cast(sum(l_extendedprice * (1 - l_discount)) as double) as promo_revenue
from lineitem, part
where l_partkey = p_partkey
  and l_shipdate >= cast($1 as date)
  and l_shipdate < cast($1 as date) + interval '1' month
