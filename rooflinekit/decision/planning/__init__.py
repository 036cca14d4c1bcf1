"""From traffic, objectives and prices to deployments: what to buy, what it costs, what binds."""
