"""What a model server keeps of its calls: the calls themselves, their tokens and cost, the budgets they draw on."""
