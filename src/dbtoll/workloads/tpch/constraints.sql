-- TPC-H 1.4.2.3: primary and foreign keys, referenced tables first.
alter table region add constraint region_pkey primary key using index region_pkey;
alter table nation add constraint nation_pkey primary key using index nation_pkey;
alter table supplier add constraint supplier_pkey primary key using index supplier_pkey;
alter table customer add constraint customer_pkey primary key using index customer_pkey;
alter table part add constraint part_pkey primary key using index part_pkey;
alter table partsupp add constraint partsupp_pkey primary key using index partsupp_pkey;
alter table orders add constraint orders_pkey primary key using index orders_pkey;
alter table lineitem add constraint lineitem_pkey primary key using index lineitem_pkey;
alter table nation add foreign key (n_regionkey) references region;
alter table supplier add foreign key (s_nationkey) references nation;
alter table customer add foreign key (c_nationkey) references nation;
alter table partsupp add foreign key (ps_partkey) references part;
alter table partsupp add foreign key (ps_suppkey) references supplier;
alter table orders add foreign key (o_custkey) references customer;
alter table lineitem add foreign key (l_orderkey) references orders;
alter table lineitem add foreign key (l_partkey, l_suppkey) references partsupp;
