-- TPC-H 2.4.15 Top Supplier
-- parameters: DATE
-- answer: exact trimmed exact trimmed numeric
-- variant: the specification's view as a WITH clause (its appendix approves this form).
with revenue (supplier_no, total_revenue) as (
  select l_suppkey, sum(l_extendedprice * (1 - l_discount))
  from lineitem
  where l_shipdate >= cast($1 as date)
    and l_shipdate < cast($1 as date) + interval '3' month
  group by l_suppkey
)
select s_suppkey, s_name, s_address, s_phone, total_revenue
from supplier, revenue
where s_suppkey = supplier_no
  and total_revenue = (select max(total_revenue) from revenue)
order by s_suppkey
