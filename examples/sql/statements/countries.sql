-- A join of everything, aggregated. Its answer is in expected/countries.csv.
-- answer: exact exact numeric
select country.name, count(*) as orders, sum(amount) as amount
from orders
join customer on customer.id = orders.customer
join country on country.code = customer.country
group by country.name
order by country.name
