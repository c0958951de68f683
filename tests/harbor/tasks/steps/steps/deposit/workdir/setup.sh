mv form receipt-form
