-- Both index profiles have these: one index per primary key and one per foreign key that no primary key's index serves.
-- PostgreSQL makes none for foreign keys by itself, and without the one on (l_partkey, l_suppkey) Q17 and Q20 grow with the
-- square of the scale: at scale 0.1 they take 21 s and 43 s instead of 0.06 s and 0.006 s (PostgreSQL 15).
--
-- Primary keys become constraints in constraints.sql. As plain unique indexes they need no exclusive lock while they are
-- built, so two connections can build two indexes of one table at the same time. Largest first.
create unique index lineitem_pkey on lineitem (l_orderkey, l_linenumber);
create index lineitem_part_supp on lineitem (l_partkey, l_suppkey);
create index lineitem_supp on lineitem (l_suppkey);
create unique index orders_pkey on orders (o_orderkey);
create index orders_cust on orders (o_custkey);
create unique index partsupp_pkey on partsupp (ps_partkey, ps_suppkey);
create index partsupp_supp on partsupp (ps_suppkey);
create unique index part_pkey on part (p_partkey);
create unique index customer_pkey on customer (c_custkey);
create index customer_nation on customer (c_nationkey);
create unique index supplier_pkey on supplier (s_suppkey);
create index supplier_nation on supplier (s_nationkey);
create unique index nation_pkey on nation (n_nationkey);
create index nation_region on nation (n_regionkey);
create unique index region_pkey on region (r_regionkey);
