-- TPC-H 2.4.17 Small-Quantity-Order Revenue
-- parameters: BRAND CONTAINER
-- answer: numeric
-- dialect: the average of decimals keeps their scale; with more places it parts the rows as in the reference answer. The average of
-- doubles does not: its rounding error finds items that have exactly a fifth of it.
-- dialect: a quotient of decimals keeps their scale; as double it has the digits of the reference answer.
select cast(sum(l_extendedprice) as double) / 7.0 as avg_yearly
from lineitem, part
where p_partkey = l_partkey
  and p_brand = cast($1 as char(10))
  and p_container = cast($2 as char(10))
  and l_quantity < (select 0.2 * avg(cast(l_quantity as decimal(18, 6))) from lineitem where l_partkey = p_partkey)
