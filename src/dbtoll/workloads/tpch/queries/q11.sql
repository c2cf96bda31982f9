-- TPC-H 2.4.11 Important Stock Identification
-- parameters: NATION FRACTION
-- answer: exact numeric
-- order: ps_partkey is added, so that equal rows have one order.
select ps_partkey, sum(ps_supplycost * ps_availqty) as value
from partsupp, supplier, nation
where ps_suppkey = s_suppkey
  and s_nationkey = n_nationkey
  and n_name = cast($1 as char(25))
group by ps_partkey
having sum(ps_supplycost * ps_availqty) > (
  select sum(ps_supplycost * ps_availqty) * cast($2 as decimal(15,10))
  from partsupp, supplier, nation
  where ps_suppkey = s_suppkey
    and s_nationkey = n_nationkey
    and n_name = cast($1 as char(25))
)
order by value desc, ps_partkey
