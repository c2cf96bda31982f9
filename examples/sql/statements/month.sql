-- What was sold in the thirty days after a date.
-- parameter $1 date 2020-01-01..2023-11-30
-- parameter $2 choice 'paid', 'shipped'
select placed, count(*) as orders, sum(amount) as amount
from orders
where placed >= cast($1 as date) and placed < cast($1 as date) + 30 and state = $2
group by placed
order by placed
