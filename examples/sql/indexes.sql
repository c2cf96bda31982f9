alter table customer add primary key (id);
alter table orders add primary key (id);
create index orders_customer on orders (customer);
create index orders_placed on orders (placed);
