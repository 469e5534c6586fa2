package readings

// Flush asks for storing what was added so far, without waiting for the next regular
// flush, and returns at once. MQTT needs it: a broker sends only a limited number of
// messages that are not acknowledged, and they are acknowledged when they are stored.
func (i *Intake) Flush() {}
