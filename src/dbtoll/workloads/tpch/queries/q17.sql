-- TPC-H 2.4.17 Small-Quantity-Order Revenue
-- parameters: BRAND CONTAINER
-- answer: numeric
select sum(l_extendedprice) / 7.0 as avg_yearly
from lineitem, part
where p_partkey = l_partkey
  and p_brand = cast($1 as char(10))
  and p_container = cast($2 as char(10))
  and l_quantity < (select 0.2 * avg(l_quantity) from lineitem where l_partkey = p_partkey)
