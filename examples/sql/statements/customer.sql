-- One customer's latest orders: an index look-up, a few hundredths of a millisecond.
-- parameter $1 integer 1..20000
select id, placed, state, amount
from orders
where customer = $1
order by placed desc, id
limit 20
