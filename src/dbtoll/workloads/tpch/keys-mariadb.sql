-- What keys.sql has beside primary keys, which the tables have already (primary-keys.sql). Largest first.
create index lineitem_part_supp on lineitem (l_partkey, l_suppkey);
create index lineitem_supp on lineitem (l_suppkey);
create index orders_cust on orders (o_custkey);
create index partsupp_supp on partsupp (ps_suppkey);
create index customer_nation on customer (c_nationkey);
create index supplier_nation on supplier (s_nationkey);
create index nation_region on nation (n_regionkey);
