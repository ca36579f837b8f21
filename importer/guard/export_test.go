package guard

// KindOf is kindOf.
var KindOf = kindOf
