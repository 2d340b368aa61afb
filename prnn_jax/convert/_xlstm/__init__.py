"""sLSTM layers of the packages xlstm and tirex."""
