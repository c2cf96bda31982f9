-- TPC-H 2.4.13 Customer Distribution
-- parameters: WORD1 WORD2
-- answer: exact exact
-- dialect: texts are joined by concat, and a derived table has no list of columns.
select c_count, count(*) as custdist
from (
  select c_custkey, count(o_orderkey) as c_count
  from customer left outer join orders
    on c_custkey = o_custkey
    and o_comment not like concat('%', cast($1 as char), '%', cast($2 as char), '%')
  group by c_custkey
) as c_orders
group by c_count
order by custdist desc, c_count desc
