-- The customers who bought most in one state of the order, ranked: a sort that needs memory.
-- parameter $1 choice 'open', 'paid', 'shipped', 'returned'
-- parameter $2 decimal 100.00..500.00
select id, name, total, rank
from (
  select customer.id, customer.name, sum(amount) as total, rank() over (order by sum(amount) desc, customer.id) as rank
  from orders
  join customer on customer.id = orders.customer
  where state = $1 and amount > $2
  group by customer.id, customer.name
) as ranked
where rank <= 50
order by rank
