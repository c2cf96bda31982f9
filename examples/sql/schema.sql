create table country (
  code char(2) primary key,
  name varchar(40) not null
);

create table customer (
  id integer not null,
  country char(2) not null,
  name varchar(40) not null,
  since date not null
);

create table orders (
  id integer not null,
  customer integer not null,
  placed date not null,
  state varchar(10) not null,
  amount decimal(10,2) not null
);
