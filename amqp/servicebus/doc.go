// Package servicebus serves programs that know Azure Service Bus: a dialect of amqp/v10, for listeners of their own. Addresses
// are those of entities, rights come from tokens that clients put, and outcomes mean what those programs mean by them.
//
// It promises: what a client is told has happened has been committed by a majority; a lock token names one holding of one
// message, and nobody guesses it; nothing of a message but what was asked for is changed.
//
// It does not know the cluster: that is behind amqp.Broker, Machine and Directory. Descriptions of entities are package
// entity's, signatures package sas's, changes of stored messages package edit's.
package servicebus
