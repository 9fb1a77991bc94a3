package fsm

// typeNames are the names of the types of field values in error texts and
// listings, indexed by the protocol's type letter.
var typeNames = [128]string{
	't': "bool", 'b': "byte", 'B': "unsignedbyte", 's': "short", 'u': "unsignedshort", 'I': "signedint", 'i': "unsignedint",
	'l': "long", 'L': "long", 'f': "float", 'd': "double", 'D': "decimal", 'S': "longstr", 'x': "binary", 'A': "array",
	'T': "timestamp", 'F': "table", 'V': "void",
}

// TypeName returns the name of the type of a field value with this letter. It
// is empty if AMQP has no such letter.
func TypeName(tag uint32) string {
	if tag < uint32(len(typeNames)) {
		return typeNames[tag]
	}
	return ""
}
