package main

// absent lists the verbs of RabbitMQ's programs that mean nothing here, and what does the same.
var absent = []struct{ verb, instead string }{}
