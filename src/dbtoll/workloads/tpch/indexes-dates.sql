-- What the profile dates adds to keys.sql: the date columns on which queries select a range (l_shipdate: Q6, Q14, Q15,
-- Q20; l_receiptdate: Q12; o_orderdate: Q3, Q4, Q5, Q8, Q10). Minhas et al. 2008 name no indexes, but their figures do: a database of
-- 2 GB at scale 1, and run times (Q6 a tenth of Q1, Q14 a twentieth) that a scan of the whole lineitem cannot reach. They
-- are those of the kit that TPC-H on PostgreSQL was run with in its time (OSDL DBT-3), and TPC-H 1.5 admits none but keys
-- and dates. l_commitdate is left out: the queries compare it with other columns only, which no index serves.
create index lineitem_shipdate on lineitem (l_shipdate);
create index lineitem_receiptdate on lineitem (l_receiptdate);
create index orders_orderdate on orders (o_orderdate);
