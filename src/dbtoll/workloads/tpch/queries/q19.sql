-- TPC-H 2.4.19 Discounted Revenue
-- parameters: QUANTITY1 QUANTITY2 QUANTITY3 BRAND1 BRAND2 BRAND3
-- answer: numeric
select sum(l_extendedprice * (1 - l_discount)) as revenue
from lineitem, part
where (
    p_partkey = l_partkey
    and p_brand = cast($4 as char(10))
    and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
    and l_quantity >= cast($1 as decimal(15,2))
    and l_quantity <= cast($1 as decimal(15,2)) + 10
    and p_size between 1 and 5
    and l_shipmode in ('AIR', 'AIR REG')
    and l_shipinstruct = 'DELIVER IN PERSON'
  ) or (
    p_partkey = l_partkey
    and p_brand = cast($5 as char(10))
    and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
    and l_quantity >= cast($2 as decimal(15,2))
    and l_quantity <= cast($2 as decimal(15,2)) + 10
    and p_size between 1 and 10
    and l_shipmode in ('AIR', 'AIR REG')
    and l_shipinstruct = 'DELIVER IN PERSON'
  ) or (
    p_partkey = l_partkey
    and p_brand = cast($6 as char(10))
    and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
    and l_quantity >= cast($3 as decimal(15,2))
    and l_quantity <= cast($3 as decimal(15,2)) + 10
    and p_size between 1 and 15
    and l_shipmode in ('AIR', 'AIR REG')
    and l_shipinstruct = 'DELIVER IN PERSON'
  )
