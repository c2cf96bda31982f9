-- TPC-H 2.4.20 Potential Part Promotion
-- parameters: COLOR DATE NATION
-- answer: trimmed exact
-- MonetDB: varchar needs a length.
select s_name, s_address
from supplier, nation
where s_suppkey in (
    select ps_suppkey
    from partsupp
    where ps_partkey in (select p_partkey from part where p_name like cast($1 as varchar(55)) || '%')
      and ps_availqty > (
        select 0.5 * sum(l_quantity)
        from lineitem
        where l_partkey = ps_partkey
          and l_suppkey = ps_suppkey
          and l_shipdate >= cast($2 as date)
          and l_shipdate < cast($2 as date) + interval '1' year
      )
  )
  and s_nationkey = n_nationkey
  and n_name = cast($3 as char(25))
order by s_name
