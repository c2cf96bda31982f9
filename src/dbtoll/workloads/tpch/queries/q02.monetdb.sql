-- TPC-H 2.4.2 Minimum Cost Supplier
-- parameters: SIZE TYPE REGION
-- answer: numeric trimmed trimmed exact trimmed exact trimmed exact
-- MonetDB: varchar needs a length.
select s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
from part, supplier, partsupp, nation, region
where p_partkey = ps_partkey
  and s_suppkey = ps_suppkey
  and p_size = cast($1 as integer)
  and p_type like '%' || cast($2 as varchar(25))
  and s_nationkey = n_nationkey
  and n_regionkey = r_regionkey
  and r_name = cast($3 as char(25))
  and ps_supplycost = (
    select min(ps_supplycost)
    from partsupp, supplier, nation, region
    where p_partkey = ps_partkey
      and s_suppkey = ps_suppkey
      and s_nationkey = n_nationkey
      and n_regionkey = r_regionkey
      and r_name = cast($3 as char(25))
  )
order by s_acctbal desc, n_name, s_name, p_partkey
limit 100
