package fsm

// typeNames are the names that texts use for the types of field values, by the
// letter that the protocol gives them.
var typeNames = [128]string{
	't': "bool", 'b': "byte", 'B': "unsignedbyte", 's': "short", 'u': "unsignedshort", 'I': "signedint", 'i': "unsignedint",
	'l': "long", 'L': "long", 'f': "float", 'd': "double", 'D': "decimal", 'S': "longstr", 'x': "binary", 'A': "array",
	'T': "timestamp", 'F': "table", 'V': "void",
}

// TypeName is what texts call the type of a field value with this letter;
// empty: the letter is not AMQP's.
func TypeName(tag uint32) string {
	if tag < uint32(len(typeNames)) {
		return typeNames[tag]
	}
	return ""
}
