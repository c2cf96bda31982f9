-- TPC-H 2.4.1 Pricing Summary Report
-- parameters: DELTA
-- answer: trimmed trimmed numeric numeric numeric numeric numeric numeric numeric exact
-- MonetDB: the average of decimals keeps their scale; as double it has the digits of the reference answer.
select
  l_returnflag,
  l_linestatus,
  sum(l_quantity) as sum_qty,
  sum(l_extendedprice) as sum_base_price,
  sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
  sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge,
  avg(cast(l_quantity as double)) as avg_qty,
  avg(cast(l_extendedprice as double)) as avg_price,
  avg(cast(l_discount as double)) as avg_disc,
  count(*) as count_order
from lineitem
where l_shipdate <= date '1998-12-01' - cast($1 as integer) * interval '1' day
group by l_returnflag, l_linestatus
order by l_returnflag, l_linestatus
