-- TPC-H 2.4.16 Parts/Supplier Relationship
-- parameters: BRAND TYPE SIZE1 SIZE2 SIZE3 SIZE4 SIZE5 SIZE6 SIZE7 SIZE8
-- answer: trimmed exact exact exact
-- MonetDB: varchar needs a length.
select p_brand, p_type, p_size, count(distinct ps_suppkey) as supplier_cnt
from partsupp, part
where p_partkey = ps_partkey
  and p_brand <> cast($1 as char(10))
  and p_type not like cast($2 as varchar(25)) || '%'
  and p_size in (
    cast($3 as integer), cast($4 as integer), cast($5 as integer), cast($6 as integer),
    cast($7 as integer), cast($8 as integer), cast($9 as integer), cast($10 as integer)
  )
  and ps_suppkey not in (
    select s_suppkey from supplier where s_comment like '%Customer%Complaints%'
  )
group by p_brand, p_type, p_size
order by supplier_cnt desc, p_brand, p_type, p_size
