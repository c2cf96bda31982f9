-- TPC-H 2.4.17 Small-Quantity-Order Revenue
-- parameters: BRAND CONTAINER
-- answer: numeric
-- MonetDB: averages and quotients of decimals keep their scale; as double they find the rows and have the digits of the
-- reference answer.
select cast(sum(l_extendedprice) as double) / 7.0 as avg_yearly
from lineitem, part
where p_partkey = l_partkey
  and p_brand = cast($1 as char(10))
  and p_container = cast($2 as char(10))
  and l_quantity < (select 0.2 * avg(cast(l_quantity as double)) from lineitem where l_partkey = p_partkey)
