-- The remainders scatter the values without drawing lots, so that every load makes the same rows.
insert into customer
select n, (array['DE', 'FR', 'JP', 'BR', 'CA'])[1 + n * 7919 % 5], 'customer ' || n, date '2015-01-01' + n * 31 % 3000
from generate_series(1, 20000) as n;

insert into orders
select
  n,
  1 + (n::bigint * 7907 % 20000)::integer,
  date '2020-01-01' + (n::bigint * 6007 % 1461)::integer,
  (array['open', 'paid', 'shipped', 'returned'])[1 + n * 13 % 4],
  (n::bigint * 104729 % 100000) / 100.0
from generate_series(1, 200000) as n;
