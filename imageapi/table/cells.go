package table

// None is the cell for nothing in kubectl's tables.
const None = "<none>"

// Unknown is the cell for what is not known yet.
const Unknown = "<unknown>"
